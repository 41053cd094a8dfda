"""Advantages of whole completions: relative to the others of a group (GRPO, Dr. GRPO, RLOO), or the plain reward."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component("advantage", paper="arXiv 2402.03300", needs=("reward", "group"), compares_group=True)
def grpo(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-4) -> Tensor:
    """GRPO: A_i = (r_i - mean(r)) / (std(r) + std_eps) within the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1.2 (outcome supervision). The paper leaves the std's divisor and the eps
    open; here std has ddof 1, as in TRL and verl, and the default eps is TRL's 1e-4 (verl 1e-6).

    Args:
        std_eps: Added to the std (TRL 1e-4, verl 1e-6).
    """
    std = rows.by("group").std(rows["reward"], ddof=1)
    return torch.where(std > 0, _centred(rows) / (std + std_eps), 0.0)


@component("advantage", paper="arXiv 2503.20783", needs=("reward", "group"), compares_group=True)
def dr_grpo(rows: Rows) -> Tensor:
    """Dr. GRPO: A_i = r_i - mean(r), without the std, which favours groups that are almost all right or all wrong.

    Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3.2.
    """
    return _centred(rows)


@component("advantage", paper="arXiv 2402.14740", needs=("reward", "group"), compares_group=True)
def rloo(rows: Rows) -> Tensor:
    """RLOO: A_i = r_i - mean of the other rewards of the group = (r_i - mean(r)) n / (n - 1).

    Back to Basics, arXiv 2402.14740.
    """
    count = rows.by("group").count(rows["reward"])
    return _centred(rows) * count / (count - 1).clamp_min(1)


@component("advantage", paper="Williams, 1992", needs=("reward",), returns=("advantage", "return"))
def reward(rows: Rows) -> Tensor:
    """REINFORCE without a baseline: A_i = r_i.

    Williams, Simple Statistical Gradient-Following Algorithms, Machine Learning 8, 1992.
    """
    return rows["reward"].nan_to_num(0.0)


def _centred(rows: Rows) -> Tensor:
    """Rewards less their group's mean, (N,); 0 for rows without a reward and in groups without variance."""
    reward, groups = rows["reward"], rows.by("group")
    return torch.where(groups.varied(reward), (reward - groups.mean(reward)).nan_to_num(0.0), 0.0)
