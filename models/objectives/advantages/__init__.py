"""Advantages: `(ScoredBatch, *, settings) -> (N,) float64`, once an update. N completions.

One that is registered with `needs` is made anew for every optimiser step, `(StepView, *, settings) -> (N,) or (M,)`.

Conventions, the same for all, where peers differ or are silent:
rows that could not be judged (NaN) leave their group, mean and count included, and get 0;
a group of one judged row gets 0, since nothing is left to compare it with;
a group whose judged rewards are all equal gets exactly 0, whatever rounding does to its mean.
Left out: critics, normalisation over the whole batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.models.objectives.batch import ScoredBatch, StepView

Advantage = Callable[[ScoredBatch], Tensor]
StepAdvantage = Callable[[StepView], Tensor]


def centred_rewards(batch: ScoredBatch) -> tuple[Tensor, Tensor]:
    """Rewards less their group's mean, and the group's number of judged rows, each (N,)."""
    judged = batch.judged
    reward = torch.where(judged, batch.reward, torch.zeros_like(batch.reward))
    count = group_sum(batch, judged.double())[batch.group]
    mean = group_sum(batch, reward)[batch.group] / count.clamp_min(1)
    # The mean of equal numbers need not be equal to them in floating point, so equality is asked of the numbers.
    high, low = _extremes(batch)
    return torch.where(judged & (high > low)[batch.group], reward - mean, torch.zeros_like(reward)), count


def has_variance(batch: ScoredBatch) -> Tensor:
    """(groups,) bool: groups in which two judged rewards differ."""
    high, low = _extremes(batch)
    return high > low


def _extremes(batch: ScoredBatch) -> tuple[Tensor, Tensor]:
    """Highest and lowest judged reward of each group, (groups,); -inf and inf where there is none."""
    empty = torch.full((batch.num_groups,), torch.inf, dtype=batch.reward.dtype)
    high = (-empty).scatter_reduce_(0, batch.group, batch.reward.masked_fill(~batch.judged, -torch.inf), "amax")
    low = empty.scatter_reduce_(0, batch.group, batch.reward.masked_fill(~batch.judged, torch.inf), "amin")
    return high, low


def group_sum(batch: ScoredBatch, values: Tensor) -> Tensor:
    """Sum of values (N,) over each group, (groups,)."""
    return torch.zeros(batch.num_groups, dtype=values.dtype).index_add_(0, batch.group, values)
