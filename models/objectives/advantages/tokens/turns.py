"""Advantages of single tokens by the turns of an agent, which a reward or a shape marks: GiGPO, SALT, M-GRPO.

A turn is a mark `turn` over the tokens that the policy wrote in it. Its label and value mean what the method says. No
two turns of a row overlap; a token outside of all has the advantage of its row. Rows of several turns need a table of
episodes, so no overlay names these.
"""

from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from gradus.components import component
from gradus.components.rows import Marks, numbered
from gradus.models.objectives.advantages.group_relative import dr_grpo, grpo
from gradus.models.objectives.ragged import offsets, spans
from gradus.models.objectives.rows import Groups, Rows

StdEps = Annotated[float, Ge(0.0)]


@component(
    "advantage", paper="arXiv 2505.10978", needs=("reward", "group", "marks.turn"), per="token", compares_group=True
)
def gigpo(
    rows: Rows,
    *,
    share: Annotated[float, Ge(0.0)] = 1.0,
    gamma: Annotated[float, Ge(0.0), Le(1.0)] = 0.95,
    divide: bool = True,
    std_eps: StdEps = 1e-6,
) -> Tensor:
    """GiGPO: A_t = A_i + share * (G_k - mean(G)) / (std(G) + std_eps) over turns of the group in one state, (M,).

    G_k = sum over l >= k of gamma^(l - k) r_l of the row's turns; A_i as in `grpo`. The label of a turn is the state
    that it begins in, its value its reward r_k; a row whose turns have no value has its reward at the last one. A state
    seen once adds 0. Group-in-Group Policy Optimization, arXiv 2505.10978, as in a port of its code (core_gigpo.py);
    states are equal by their text alone. 0 for a row without a reward.

    Args:
        share: Weight of the turn's part.
        gamma: Discount of a reward one turn later.
        divide: False for both parts without the std.
        std_eps: Added to the std.
    """
    turns = in_order(rows.marks("turn"))
    returns = _returns(rows, turns, gamma)
    groups = _same(rows, turns)
    size = groups.std(returns, ddof=1) + std_eps if divide else torch.ones_like(returns)
    step = torch.where(groups.varied(returns), (returns - groups.mean(returns)) / size, 0.0).nan_to_num(0.0)
    episode = grpo(rows, std_eps=std_eps) if divide else dr_grpo(rows)
    return episode[rows.row] + share * spread(rows, turns, step, torch.zeros(len(rows.row), dtype=torch.float64))


@component(
    "advantage", paper="arXiv 2510.20022", needs=("reward", "group", "marks.turn"), per="token", compares_group=True
)
def salt(rows: Rows, *, std_eps: StdEps = 1e-4) -> Tensor:
    """SALT: A_t = mean of A_i (see `grpo`) over the rows of the group that have the token's turn, (M,).

    The label of a turn is the edge of the trajectory graph that it is, such as state and action; a turn of one row
    alone keeps the row's A_i. SALT, arXiv 2510.20022; the pooling by a mean is a guess.

    Args:
        std_eps: Added to the std.
    """
    turns, own = in_order(rows.marks("turn")), grpo(rows, std_eps=std_eps)
    edge = _same(rows, turns).of
    pairs = torch.unique(torch.stack([edge, turns.row]), dim=1)  # a row counts once, however often it has the edge
    judged = torch.where(rows["reward"].isnan(), torch.nan, own)
    total = torch.zeros(2, int(edge.max()) + 1 if len(edge) else 0, dtype=torch.float64)
    total[0].index_add_(0, pairs[0], judged[pairs[1]].nan_to_num(0.0))
    total[1].index_add_(0, pairs[0], (~judged[pairs[1]].isnan()).double())
    pooled = torch.where(judged[turns.row].isnan(), 0.0, (total[0] / total[1].clamp_min(1))[edge])
    return spread(rows, turns, pooled, own[rows.row])


@component(
    "advantage", paper="arXiv 2511.13288", needs=("reward", "group", "marks.turn"), per="token", compares_group=True
)
def m_grpo(rows: Rows, *, std_eps: StdEps = 1e-4) -> Tensor:
    """M-GRPO: a sub-agent's turns are normalised among those of the same sub-agent, other tokens as in `grpo`, (M,).

    A_t = (v - mean(v)) / (std(v) + std_eps) over the turns of the group with the label of the token's turn; the label
    is the sub-agent, the value v the reward of its part. A turn without a label is the main agent's, and has the row's
    advantage. Training Multi-Agent Systems with M-GRPO, arXiv 2511.13288. Left out: the same number of calls in each
    row, by repeating or dropping some, which is the work of a shape.

    Args:
        std_eps: Added to the std.
    """
    turns, own = in_order(rows.marks("turn")), grpo(rows, std_eps=std_eps)[rows.row]
    named = torch.from_numpy(np.array([label is not None for label in turns.label], dtype=np.bool_))
    groups, value = _same(rows, turns), torch.where(named, turns.value, torch.nan)
    relative = (value - groups.mean(value)) / (groups.std(value, ddof=1) + std_eps)
    relative = torch.where(groups.varied(value), relative, 0.0).nan_to_num(0.0)
    found = spread(rows, turns, relative, own)
    return torch.where(spread(rows, turns, named.double(), torch.zeros_like(own)) > 0, found, own)


def in_order(turns: Marks) -> Marks:
    """Return marks by row, then by their first token."""
    order = torch.from_numpy(np.lexsort((turns.start.numpy(), turns.row.numpy())))
    return Marks(turns.row[order], turns.start[order], turns.end[order], turns.value[order], turns.label[order.numpy()])


def _same(rows: Rows, turns: Marks) -> Groups:
    """The turns by their group and label; one without a label is its own."""
    label = np.array([f"{number}" if each is None else f"={each}" for number, each in enumerate(turns.label)], np.str_)
    return Groups(torch.from_numpy(numbered([rows.by("group").of[turns.row].numpy(), label])))


def _returns(rows: Rows, turns: Marks, gamma: float) -> Tensor:
    """The discounted rewards of each turn and those after it in its row, (K,); NaN in a row without a reward."""
    valued = torch.zeros(rows.num_rows, dtype=torch.int64).index_add_(0, turns.row, (~turns.value.isnan()).long())
    count = torch.bincount(turns.row, minlength=rows.num_rows)
    left = offsets(count)[1:][turns.row] - 1 - torch.arange(len(turns.row))  # turns behind it in its row
    reward = rows["reward"][turns.row]
    found = torch.where((valued[turns.row] == 0) & (left == 0), reward, turns.value.nan_to_num(0.0))
    for behind in range(1, int(count.max()) if len(count) else 0):
        now = (left == behind).nonzero()[:, 0]
        found[now] += gamma * found[now + 1]
    return torch.where(reward.isnan(), torch.nan, found)


def spread(rows: Rows, marks: Marks, values: Tensor, otherwise: Tensor) -> Tensor:
    """Return the value (K,) of the mark of each token, `otherwise` (M,) outside of all."""
    lengths = marks.end - marks.start
    found = otherwise.clone()
    found[spans(offsets(rows.lengths)[marks.row] + marks.start, lengths)] = torch.repeat_interleave(values, lengths)
    return found
