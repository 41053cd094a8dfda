"""Weights from what the answers of a group have in common, place by place."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.ragged import joint, offsets
from gradus.models.objectives.rows import Groups, Rows

_SMALL = 1e-8


@component("weight", paper="arXiv 2508.03772", needs=("reward", "group", "tokens"))
def gtpo(rows: Rows, *, conflict: Annotated[float, Ge(0.0)] = 2.0) -> tuple[Tensor, Metrics]:
    """GTPO: protect the beginnings and ends that right and wrong answers of a group share.

    A token is in conflict if an answer above the group's mean reward and one below it both have it in the same place,
    counted from the start or from the end, and all before it (behind it) are in conflict too. There an answer above
    the mean weighs `conflict`, one below it 0, and both factors (start, end) multiply; every other token weighs 1. All
    is divided by the number of tokens in conflict of the answer, at least 1. GTPO, arXiv 2508.03772, as in the authors'
    code (gtpo_training.py). For the advantage `gtpo` and the loss `reinforce` with the aggregation `sequence_mean`.
    Metric: conflict_frac, the tokens in conflict.

    Args:
        conflict: Weight of a conflict token of an answer above the mean.
    """
    groups, reward = rows.by("group"), rows["reward"]
    distance = torch.where(groups.varied(reward), reward - groups.mean(reward), 0.0).nan_to_num(0.0)[rows.row]
    above, below = distance > 0, distance < 0
    lasts = rows.lengths[rows.row] - 1 - rows.position
    starts = _leading(_shared(rows, rows.position, above, below), rows.lengths)
    ends = _leading(_shared(rows, lasts, above, below).flip(0), rows.lengths.flip(0)).flip(0)
    factor = torch.where(above, conflict, torch.where(below, 0.0, 1.0))
    weight = torch.where(starts, factor, 1.0) * torch.where(ends, factor, 1.0)
    either = starts | ends
    number = rows.row_sum(either.double()).clamp_min(1.0)
    return (weight / number[rows.row]).float(), {"conflict_frac": either.float()}


@component("weight", paper="arXiv 2505.24718", needs=("group", "divergence.tokens"))
def tw_grpo(rows: Rows, *, most: Annotated[float, Ge(1.0)] = 1.7) -> tuple[Tensor, Metrics]:
    """TW-GRPO: weigh the places more at which a group disagrees: w_t = 1 + (most - 1) (D_t - min D) / (max D - min D).

    D_t is the group's divergence at the place, of the measure `divergence`; min and max are those of the group.
    TW-GRPO, arXiv 2505.24718, as in the authors' code (grpo_trainer.py; 1e-8 is added to the divisor; 1.7 is that of
    their script). 1 where nothing is measured. Metric: divergence_mean.

    Args:
        most: Weight of the place of largest divergence.
    """
    value = rows["divergence.tokens"].double()
    groups = Groups(rows.by("group").of[rows.row])
    counted = torch.where(rows.mask, value, torch.nan)
    least, largest = -groups.max(-counted), groups.max(counted)
    share = ((value - least) / (largest - least + _SMALL)).clamp(0, 1).nan_to_num(0.0)
    return (1 + (most - 1) * share).float(), {"divergence_mean": value.nan_to_num(0.0).float()}


def _shared(rows: Rows, place: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Tokens of rows on one side that a row on the other has in the same place of its group's answers, (M,) bool."""
    keys = joint(rows.by("group").of[rows.row], place, rows["tokens"])
    number = torch.unique(keys, return_inverse=True)[1]
    sides = torch.zeros(2, int(number.max()) + 1 if len(number) else 0)
    for side, members in zip(sides, (above, below), strict=True):
        side.index_add_(0, number, members.float())
    return (sides > 0).all(0)[number] & (above | below)


def _leading(flags: Tensor, lengths: Tensor) -> Tensor:
    """Those of the flags (M,) that are set with all before them in their row; rows have these lengths."""
    missed = torch.cat([torch.zeros(1, dtype=torch.int64), (~flags).long().cumsum(0)])
    first = torch.repeat_interleave(offsets(lengths)[:-1], lengths)
    return missed[1:] == missed[first]
