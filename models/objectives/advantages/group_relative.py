"""Advantages of whole completions: relative to the others of a group (GRPO, Dr. GRPO, RLOO), or the plain reward."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages import centred_rewards, group_sum
from gradus.models.objectives.batch import ScoredBatch


@component("advantage", paper="arXiv 2402.03300", compares_group=True)
def grpo(batch: ScoredBatch, *, std_eps: Annotated[float, Ge(0.0)] = 1e-4) -> Tensor:
    """GRPO: A_i = (r_i - mean(r)) / (std(r) + std_eps) within the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1.2 (outcome supervision). The paper leaves the std's divisor and the eps
    open; here std has ddof 1, as in TRL and verl, and the default eps is TRL's 1e-4 (verl 1e-6).

    Args:
        batch: N judged completions.
        std_eps: Added to the std (TRL 1e-4, verl 1e-6).
    """
    centred, count = centred_rewards(batch)
    squares = group_sum(batch, centred**2)[batch.group]
    std = (squares / (count - 1).clamp_min(1)).sqrt()
    return torch.where(squares > 0, centred / (std + std_eps), torch.zeros_like(centred))


@component("advantage", paper="arXiv 2503.20783", compares_group=True)
def dr_grpo(batch: ScoredBatch) -> Tensor:
    """Dr. GRPO: A_i = r_i - mean(r), without the std, which favours groups that are almost all right or all wrong.

    Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3.2.
    """
    return centred_rewards(batch)[0]


@component("advantage", paper="arXiv 2402.14740", compares_group=True)
def rloo(batch: ScoredBatch) -> Tensor:
    """RLOO: A_i = r_i - mean of the other rewards of the group = (r_i - mean(r)) n / (n - 1).

    Back to Basics, arXiv 2402.14740.
    """
    centred, count = centred_rewards(batch)
    return centred * count / (count - 1).clamp_min(1)


@component("advantage", paper="Williams, 1992")
def reward(batch: ScoredBatch) -> Tensor:
    """REINFORCE without a baseline: A_i = r_i.

    Williams, Simple Statistical Gradient-Following Algorithms, Machine Learning 8, 1992.
    """
    return torch.where(batch.judged, batch.reward, 0.0)
