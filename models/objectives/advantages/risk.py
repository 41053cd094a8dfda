"""Advantages by a risk measure of the group's rewards."""

import math
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows

_ROUNDING = 1e-9
"""0.7 * 10 is more than 7."""


@component("advantage", paper="arXiv 2510.00911", needs=("reward", "group"), compares_group=True)
def range_var(
    rows: Rows,
    *,
    low: Annotated[float, Gt(0.0), Lt(1.0)] = 0.1,
    high: Annotated[float, Gt(0.0), Lt(1.0)] = 0.9,
    tail: Annotated[float, Ge(0.0)] = 0.0,
) -> Tensor:
    """Return the place of a reward S between two quantiles of its group, with weight on the lower tail, (N,) (RiskPO).

    RiskPO (arXiv 2510.00911): A = (tail * -max(q_low - S, 0) / low + [max(S - q_low, 0) - max(S - q_high, 0) + q_low -
    q_high] / (high - low)) / (tail + 1). With tail = 0, the default of the authors' code, no advantage is above 0.
    Deviations: the quantile is the smallest reward that at least that share of the rows does not exceed, so that rows
    of one paper may count once or several times; no running quantile; 0 in a group of equal rewards.

    Args:
        low: Lower quantile.
        high: Upper quantile.
        tail: Weight of the lower tail.
    """
    reward, group = rows["reward"], rows.by("group")
    bottom, top = (_quantile(reward, group.of, at) for at in (low, high))
    between = (reward - bottom).clamp_min(0) - (reward - top).clamp_min(0) + bottom - top
    lower = -(bottom - reward).clamp_min(0) / low
    found = (tail * lower + between / (high - low)) / (tail + 1)
    return torch.where(group.varied(reward), found, 0.0).nan_to_num(0.0)


def _quantile(reward: Tensor, group: Tensor, at: float) -> Tensor:
    """The quantile of each row's group, (N,)."""
    found = torch.full_like(reward, torch.nan)
    for number in group.unique():
        members = group == number
        values = reward[members][~reward[members].isnan()]
        if len(values):
            found[members] = values.sort().values[math.ceil(at * len(values) - _ROUNDING) - 1]
    return found
