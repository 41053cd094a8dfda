"""Advantages of whole completions by statistics of the whole batch, or by a baseline that weighs rows by length."""

from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import centred
from gradus.models.objectives.rows import Rows


@component("advantage", paper="arXiv 2501.03262", needs=("reward", "length"))
def reinforce_plus_plus(
    rows: Rows, *, over: Literal["row", "token"] = "row", std_eps: Annotated[float, Ge(0.0)] = 1e-8
) -> Tensor:
    """REINFORCE++: A_i = (r_i - mean(r)) / (std(r) + std_eps) over all rows of the batch, whatever their group, (N,).

    REINFORCE++, arXiv 2501.03262, global normalisation of advantages; std with ddof 1, as in verl. Deviation: the KL
    penalty of each token, which the paper subtracts from the reward before this, is left out; then all tokens of a row
    have one advantage. 0 for rows without a reward, and in a batch of equal rewards.

    Args:
        over: Count each row once, or each of its tokens, as verl's whitening does.
        std_eps: Added to the std.
    """
    return _standardised(rows["reward"], _weight(rows, over), std_eps)


@component("advantage", paper="arXiv 2501.03262", needs=("reward", "group", "length"), compares_group=True)
def reinforce_plus_plus_baseline(
    rows: Rows, *, over: Literal["row", "token"] = "row", std_eps: Annotated[float, Ge(0.0)] = 1e-8
) -> Tensor:
    """REINFORCE++-baseline: c_i = r_i - mean of the group; A_i = (c_i - mean(c)) / (std(c) + std_eps), (N,).

    The mean and std of c are those of all rows of the batch.

    REINFORCE++, arXiv 2501.03262; std with ddof 1, as in verl. With `over` = row the mean of c is 0, and a group of
    equal rewards gets 0. 0 for rows without a reward.

    Args:
        over: Count each row once, or each of its tokens, as verl's whitening does.
        std_eps: Added to the std.
    """
    return _standardised(centred(rows["reward"], rows.by("group")), _weight(rows, over), std_eps)


@component("advantage", paper="arXiv 2508.08221", needs=("reward", "group"), compares_group=True)
def lite_ppo(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-6) -> Tensor:
    """Lite PPO: A_i = (r_i - mean of the group) / (std(r) + std_eps), the std of all rewards of the batch, (N,).

    Tricks or Traps, arXiv 2508.08221. The std counts all judged rows, those of groups of equal rewards too, with ddof
    1; the paper leaves ddof and eps open. 0 for rows without a reward.

    Args:
        std_eps: Added to the std.
    """
    reward = rows["reward"]
    _, std = _moments(reward, torch.ones_like(reward))
    found = centred(reward, rows.by("group")).nan_to_num(0.0)
    return torch.where(found != 0, found / (std + std_eps), 0.0)


@component("advantage", paper="arXiv 2505.23585", needs=("reward", "group", "length"), compares_group=True)
def opo(rows: Rows) -> Tensor:
    """OPO: A_i = r_i - sum_j l_j r_j / sum_j l_j over the group, where l is a completion's length in tokens, (N,).

    On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585: the baseline of least variance if the squared norm of a
    row's gradient grows with its length. 0 in a group of equal rewards (verl: the reward itself in a group of one), and
    for rows without a reward.
    """
    reward, groups = rows["reward"], rows.by("group")
    length = torch.where(reward.isnan(), torch.nan, rows["length"].double())
    baseline = groups.sum(length * reward) / groups.sum(length).clamp_min(1)
    return torch.where(groups.varied(reward), (reward - baseline).nan_to_num(0.0), 0.0)


def _weight(rows: Rows, over: Literal["row", "token"]) -> Tensor:
    """By how much each row counts, (N,) float64."""
    length = rows["length"].double()
    return length if over == "token" else torch.ones_like(length)


def _moments(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std (ddof 1) of values, () each, each counted `weight` times; NaN counts nowhere."""
    weight, filled = torch.where(values.isnan(), 0.0, weight), values.nan_to_num(0.0)
    total = weight.sum()
    mean = (weight * filled).sum() / total.clamp_min(1)
    return mean, ((weight * (filled - mean) ** 2).sum() / (total - 1).clamp_min(1)).sqrt()


def _standardised(values: Tensor, weight: Tensor, std_eps: float) -> Tensor:
    """Values less their mean over their std, (N,); 0 for NaN, and for all if those that count are equal."""
    mean, std = _moments(values, weight)
    known = ~values.isnan()
    varied = len(values[known & (weight > 0)].unique()) > 1
    return torch.where(known & varied, (values - mean) / (std + std_eps), 0.0)
