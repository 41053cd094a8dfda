"""Advantages of whole completions: relative to the others of a group (GRPO, Dr. GRPO, RLOO), or the plain reward."""

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Groups, Rows


@component("advantage", paper="arXiv 2402.03300", needs=("reward", "group"), compares_group=True)
def grpo(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-4, ddof: Annotated[int, Ge(0), Le(1)] = 1) -> Tensor:
    """GRPO: A_i = (r_i - mean(r)) / (std(r) + std_eps) within the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1.2 (outcome supervision). The paper leaves the std's divisor and the eps
    open; here std has ddof 1, as in TRL and verl, and the default eps is TRL's 1e-4 (verl 1e-6). Other divisors than
    the std: none in `dr_grpo`, the mean absolute deviation in `dgpo` at temperature 0.

    Args:
        std_eps: Added to the std (TRL 1e-4, verl 1e-6).
        ddof: 1 for the sample's std, with n - 1 as divisor of the squares, 0 for the population's, with n.
    """
    return standardised(rows["reward"], rows.by("group"), std_eps, ddof)


@component("advantage", paper="arXiv 2503.20783", needs=("reward", "group"), compares_group=True)
def dr_grpo(rows: Rows) -> Tensor:
    """Dr. GRPO: A_i = r_i - mean(r), without the std, which favours groups that are almost all right or all wrong.

    Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3.2.
    """
    return centred(rows["reward"], rows.by("group")).nan_to_num(0.0)


@component("advantage", paper="arXiv 2402.14740", needs=("reward", "group"), compares_group=True)
def rloo(rows: Rows) -> Tensor:
    """RLOO: A_i = r_i - mean of the other rewards of the group = (r_i - mean(r)) n / (n - 1).

    Back to Basics, arXiv 2402.14740.
    """
    reward, groups = rows["reward"], rows.by("group")
    count = groups.count(reward)
    return centred(reward, groups).nan_to_num(0.0) * count / (count - 1).clamp_min(1)


@component("advantage", paper="Williams, 1992", needs=("reward",), returns=("advantage", "return"))
def reward(rows: Rows) -> Tensor:
    """REINFORCE without a baseline: A_i = r_i.

    Williams, Simple Statistical Gradient-Following Algorithms, Machine Learning 8, 1992.
    """
    return rows["reward"].nan_to_num(0.0)


def centred(reward: Tensor, groups: Groups) -> Tensor:
    """Return rewards less their group's mean, (N,); NaN without a reward, exactly 0 in a group of equal rewards."""
    return torch.where(groups.varied(reward) | reward.isnan(), reward - groups.mean(reward), 0.0)


def standardised(reward: Tensor, groups: Groups, std_eps: float, ddof: int = 1) -> Tensor:
    """Return rewards less their group's mean over its std + std_eps, (N,); 0 without a reward."""
    std = groups.std(reward, ddof)
    return torch.where(std > 0, centred(reward, groups).nan_to_num(0.0) / (std + std_eps), 0.0)
