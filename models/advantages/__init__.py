"""Group-relative advantages by name: `(ScoredBatch, **settings) -> (N,) float64`.

Conventions, the same for all: rows that could not be judged (NaN) leave their group and get 0; a group of one and a
group without variance get 0. N completions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from models.batch import ScoredBatch

Advantage = Callable[..., Tensor]


def grpo(batch: ScoredBatch, *, std_eps: float = 1e-4) -> Tensor:
    """GRPO: A_i = (r_i - mean(r)) / (std(r) + eps) within the group.

    DeepSeekMath, arXiv 2402.03300, eq. 4 in the outcome form. std with ddof 1, as TRL and verl have it; the paper
    leaves it open.
    """
    centred, count = _centred(batch)
    squares = _group_sum(batch, centred**2)[batch.group]
    std = (squares / (count - 1).clamp_min(1)).sqrt()
    return torch.where(squares > 0, centred / (std + std_eps), torch.zeros_like(centred))


def dr_grpo(batch: ScoredBatch) -> Tensor:
    """Dr. GRPO: A_i = r_i - mean(r), without the std that favours groups that are almost all right or wrong.

    Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3.2.
    """
    return _centred(batch)[0]


def rloo(batch: ScoredBatch) -> Tensor:
    """RLOO: A_i = r_i - mean of the other rewards of the group = (r_i - mean(r)) n / (n - 1).

    Back to Basics, arXiv 2402.14740, eq. 8.
    """
    centred, count = _centred(batch)
    return centred * count / (count - 1).clamp_min(1)


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def zero_std_groups(batch: ScoredBatch) -> Tensor:
    """Bool per group: no two judged rewards of it differ."""
    centred, _ = _centred(batch)
    return _group_sum(batch, centred**2) == 0


def _centred(batch: ScoredBatch) -> tuple[Tensor, Tensor]:
    """Rewards less their group's mean, and the group's number of judged rows, each (N,)."""
    assert batch.reward.dtype == torch.float64
    assert batch.reward.shape == batch.group.shape
    judged = batch.judged
    reward = torch.where(judged, batch.reward, torch.zeros_like(batch.reward))
    count = _group_sum(batch, judged.double())[batch.group]
    mean = _group_sum(batch, reward)[batch.group] / count.clamp_min(1)
    # A constant group is exactly zero: the mean of equal numbers need not be equal to them in floating point.
    high = _group_extreme(batch, reward.masked_fill(~judged, -torch.inf), "amax")
    low = _group_extreme(batch, reward.masked_fill(~judged, torch.inf), "amin")
    return torch.where(judged & (high > low), reward - mean, torch.zeros_like(reward)), count


def _group_sum(batch: ScoredBatch, values: Tensor) -> Tensor:
    return torch.zeros(batch.num_groups, dtype=values.dtype).index_add_(0, batch.group, values)


def _group_extreme(batch: ScoredBatch, values: Tensor, which: str) -> Tensor:
    start = torch.full((batch.num_groups,), -torch.inf if which == "amax" else torch.inf, dtype=values.dtype)
    return start.scatter_reduce_(0, batch.group, values, which)[batch.group]
