"""Advantages of the tokens of list items, each compared with those at its place in the other lists: Rank-GRPO."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import standardised
from gradus.models.objectives.advantages.tokens.turns import in_order, spread
from gradus.models.objectives.ragged import offsets
from gradus.models.objectives.rows import Rows


@component(
    "advantage", paper="arXiv 2510.20150", needs=("reward", "group", "marks.item"), per="token", compares_group=True
)
def rank_grpo(rows: Rows, *, onwards: bool = True, std_eps: Annotated[float, Ge(0.0)] = 1e-4) -> Tensor:
    """Rank-GRPO: A_t = (R_ik - mean(R_k)) / (std(R_k) + std_eps) of the k-th item of the list, over the group, (M,).

    R_ik = sum over j >= k of v_ij / log2(j + 1), the gain from the item on, since earlier ones are not its doing. Items
    are the marks `item` of a row in their order, v their relevance (without one 0). A list without a k-th item has
    R_ik = 0. Rank-GRPO, arXiv 2510.20150, as in the authors' code (reward_funcs.py, rank_grpo_trainer.py): std with
    ddof 1; tokens outside of all items have 0, and the tokens of an item that nobody else has are compared with 0s.
    The rewards of whole rows are not read: a row without one is left out, and has 0.

    Args:
        onwards: False for R_ik = v_ik, the item's own relevance.
        std_eps: Added to the std.
    """
    items, groups, judged = in_order(rows.marks("item")), rows.by("group"), ~rows["reward"].isnan()
    count = torch.bincount(items.row, minlength=rows.num_rows)
    place = torch.arange(len(items.row)) - offsets(count)[:-1][items.row]
    gain = torch.zeros(rows.num_rows, int(count.max()) if len(count) else 0, dtype=torch.float64)
    gain[items.row, place] = items.value.double().nan_to_num(0.0)
    if onwards:
        gain = gain / torch.arange(2, gain.shape[1] + 2).double().log2()
        gain = gain.flip(1).cumsum(1).flip(1)
    known = torch.where(judged[:, None], gain, torch.nan)
    relative = [standardised(each, groups, std_eps) for each in known.unbind(1)]
    values = torch.stack(relative, 1)[items.row, place] if relative else items.value.double()
    return spread(rows, items, values, torch.zeros(len(rows.row), dtype=torch.float64))
