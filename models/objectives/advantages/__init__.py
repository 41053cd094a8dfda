"""Group-relative advantages by name: `(ScoredBatch, **settings) -> (N,) float64`. N completions.

Conventions, the same for all, where peers differ or are silent:
rows that could not be judged (NaN) leave their group, mean and count included, and get 0;
a group of one judged row gets 0, since nothing is left to compare it with;
a group whose judged rewards are all equal gets exactly 0, whatever rounding does to its mean.
Left out: token-level advantages, critics, normalisation over the whole batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.models.objectives.batch import ScoredBatch

Advantage = Callable[..., Tensor]


def grpo(batch: ScoredBatch, *, std_eps: float = 1e-4) -> Tensor:
    """GRPO: A_i = (r_i - mean(r)) / (std(r) + std_eps) within the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1.2 (outcome supervision). The paper leaves the std's divisor and the eps
    open; here std has ddof 1, as in TRL and verl, and the default eps is TRL's 1e-4 (verl 1e-6).
    """
    centred, count = _centred(batch)
    squares = _group_sum(batch, centred**2)[batch.group]
    std = (squares / (count - 1).clamp_min(1)).sqrt()
    return torch.where(squares > 0, centred / (std + std_eps), torch.zeros_like(centred))


def dr_grpo(batch: ScoredBatch) -> Tensor:
    """Dr. GRPO: A_i = r_i - mean(r), without the std, which favours groups that are almost all right or all wrong.

    Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3.2.
    """
    return _centred(batch)[0]


def rloo(batch: ScoredBatch) -> Tensor:
    """RLOO: A_i = r_i - mean of the other rewards of the group = (r_i - mean(r)) n / (n - 1).

    Back to Basics, arXiv 2402.14740.
    """
    centred, count = _centred(batch)
    return centred * count / (count - 1).clamp_min(1)


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def _centred(batch: ScoredBatch) -> tuple[Tensor, Tensor]:
    """Rewards less their group's mean, and the group's number of judged rows, each (N,)."""
    judged = batch.judged
    reward = torch.where(judged, batch.reward, torch.zeros_like(batch.reward))
    count = _group_sum(batch, judged.double())[batch.group]
    mean = _group_sum(batch, reward)[batch.group] / count.clamp_min(1)
    # The mean of equal numbers need not be equal to them in floating point, so equality is asked of the numbers.
    high, low = _extremes(batch)
    return torch.where(judged & (high > low)[batch.group], reward - mean, torch.zeros_like(reward)), count


def _extremes(batch: ScoredBatch) -> tuple[Tensor, Tensor]:
    """Highest and lowest judged reward of each group, (groups,); -inf and inf where there is none."""
    empty = torch.full((batch.num_groups,), torch.inf, dtype=batch.reward.dtype)
    high = (-empty).scatter_reduce_(0, batch.group, batch.reward.masked_fill(~batch.judged, -torch.inf), "amax")
    low = empty.scatter_reduce_(0, batch.group, batch.reward.masked_fill(~batch.judged, torch.inf), "amin")
    return high, low


def _group_sum(batch: ScoredBatch, values: Tensor) -> Tensor:
    return torch.zeros(batch.num_groups, dtype=values.dtype).index_add_(0, batch.group, values)
