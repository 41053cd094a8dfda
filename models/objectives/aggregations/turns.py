"""A mean over the turns of an agent."""

import torch
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.ragged import offsets, spans
from gradus.models.objectives.rows import Rows


@component("aggregation", paper="arXiv 2510.05592", needs=("marks.turn",), mean_over="row")
def turn_mean(rows: Rows) -> Tensor:
    """Every turn of a completion weighs the same: mean over rows of the mean over turns of the mean over their tokens.

    AgentFlow (Flow-GRPO), arXiv 2510.05592: each turn of the planner is a sample of its own, with the advantage of the
    whole (`grpo`). A turn is a mark `turn`; no two of a row overlap. Tokens outside of all count nowhere, but for a row
    without turns, which is one. Rows of several turns need a table of episodes, so no overlay names it.
    """
    turns = rows.marks("turn")
    lengths = turns.end - turns.start
    at = spans(offsets(rows.lengths)[turns.row] + turns.start, lengths)
    number = rows.row + len(turns.row)  # a row without turns is a turn with a number behind those of the marks
    number[at] = torch.repeat_interleave(torch.arange(len(turns.row)), lengths)
    marked = torch.zeros(rows.num_rows, dtype=torch.bool)
    marked[turns.row] = True
    counts = rows.mask & ((number < len(turns.row)) | ~marked[rows.row])
    tokens = torch.zeros(len(turns.row) + rows.num_rows, dtype=torch.float64).index_add_(0, number, counts.double())
    owner = torch.cat([turns.row, torch.arange(rows.num_rows)])
    num_turns = torch.zeros(rows.num_rows, dtype=torch.float64).index_add_(0, owner, (tokens > 0).double())
    num_rows = max(1, int((num_turns > 0).sum()))
    weight = 1 / (num_rows * num_turns.clamp_min(1)[rows.row] * tokens.clamp_min(1)[number])
    return torch.where(counts, weight, 0.0).float()
