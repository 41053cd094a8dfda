"""Advantages whose size depends on the difficulty of the group's problem: BNPO, MaxRL, DGPO, UniVG-R1."""

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import centred, standardised
from gradus.models.objectives.rows import Groups, Rows

_MAX_WEIGHT = 1e6


@component("advantage", paper="changyi7231/BNPO", needs=("reward", "group"), compares_group=True)
def bnpo(
    rows: Rows,
    *,
    alpha: Annotated[float, Ge(0.0)] = 0.0,
    beta: Annotated[float, Ge(0.0)] = 0.0,
    min_reward: float = 0.0,
    reward_span: Annotated[float, Gt(0.0)] = 1.0,
) -> Tensor:
    """BNPO: A_i = (r_i - p) / Beta(p; alpha, beta), where p is the mean of the group's rewards scaled to 0 .. 1, (N,).

    BNPO: with m and v the mean and variance (ddof 1) of p over the groups of the batch, a = (m (1 - m) / v - 1) m, b =
    (m (1 - m) / v - 1) (1 - m), alpha = max(1, 1 + a / 3), beta = max(1, 1 + b / 3); weights are at most 1e6. Beta(1,
    1) is REINFORCE with the mean as baseline, Beta(1.5, 1.5) GRPO without eps, times pi / 8. Deviations: a group of one
    gets 0, and weights are 1 where v is 0 (Beta would be a point, and its inverse 0). One reward, not the sum over
    parts of it. 0 for rows without a reward.

    Args:
        alpha: First parameter of Beta; 0: by the batch.
        beta: Second parameter of Beta; 0: by the batch.
        min_reward: Smallest reward possible.
        reward_span: Largest reward possible, less the smallest.
    """
    reward, groups = (rows["reward"] - min_reward) / reward_span, rows.by("group")
    mean = groups.mean(reward)
    fitted = _fitted_beta(of_groups(mean, groups)[of_groups(groups.count(reward) > 0, groups)])
    first, second = (given or found for given, found in zip((alpha, beta), fitted, strict=True))
    density = _beta_density(mean.clamp(0, 1), first, second)
    found = (1 / density).clamp_max(_MAX_WEIGHT) * (reward - mean)
    return torch.where(groups.varied(reward), found, 0.0).nan_to_num(0.0)


@component("advantage", paper="arXiv 2602.02710", needs=("reward", "group"), compares_group=True)
def maxrl(rows: Rows, *, mean_eps: Annotated[float, Ge(0.0)] = 1e-6) -> Tensor:
    """MaxRL: A_i = (r_i - mean) / (mean + mean_eps) within the group, (N,).

    Maximum Likelihood Reinforcement Learning, arXiv 2602.02710: for rewards of 0 and 1 the expected gradient is that of
    the likelihood, truncated at as many terms as the group has rows. 0 in a group whose mean is not above 0, for rows
    without a reward.

    Args:
        mean_eps: Added to the mean.
    """
    reward, groups = rows["reward"], rows.by("group")
    mean = groups.mean(reward)
    return torch.where(mean > 0, centred(reward, groups) / (mean + mean_eps), 0.0).nan_to_num(0.0)


@component("advantage", paper="AMAP-ML/MathForge", needs=("reward", "correct", "group"), compares_group=True)
def dgpo(
    rows: Rows, *, temperature: Annotated[float, Ge(0.0)] = 2.0, mad_eps: Annotated[float, Ge(0.0)] = 1e-4
) -> Tensor:
    """DGPO: A_i = w_q G (r_i - mean) / (sum_j |r_j - mean| + mad_eps) in groups of G rows, (N,).

    MathForge, with w_q = Q softmax_q(-accuracy_q / temperature). The softmax is over the Q groups of unequal rewards;
    among them one without a right row counts as all right, so that it has the smallest weight. Temperature 0: all
    weights are 1. The authors' balance of tokens between groups is that of `update.count_zero_std_groups = false`. 0
    for rows without a reward.

    Args:
        temperature: Of the softmax over groups (the authors' 2); 0 for none.
        mad_eps: Added to the sum of deviations.
    """
    reward, groups = rows["reward"], rows.by("group")
    deviation = centred(reward, groups)
    found = groups.count(reward) * deviation / (groups.sum(deviation.abs()) + mad_eps)
    accuracy = groups.mean(torch.where(reward.isnan(), torch.nan, rows["correct"].double()))
    accuracy = torch.where(accuracy > 0, accuracy, 1.0)
    weight = _softmax_weight(accuracy, groups.varied(reward), groups, temperature) if temperature else 1.0
    return torch.where(groups.varied(reward), weight * found, 0.0).nan_to_num(0.0)


@component("advantage", paper="AMAP-ML/UniVG-R1", needs=("reward", "group"), compares_group=True)
def univg_r1(
    rows: Rows,
    *,
    form: Literal["exp", "log", "power"] = "exp",
    power: Annotated[float, Gt(0.0)] = 1.0,
    std_eps: Annotated[float, Ge(0.0)] = 1e-4,
) -> Tensor:
    """UniVG-R1: A_i = w (r_i - m) / (std + std_eps), with w = exp(1 - m) for a group of mean reward m, (N,).

    UniVG-R1, difficulty-aware weights; the authors' other forms are -log(0.02 + m) and (1.05 - m)^power. std with ddof
    1. Deviation: m is the mean of the reward, where the paper takes that of the part IoU; w is at least 0. 0 for rows
    without a reward.

    Args:
        form: Weight of a group by its mean reward.
        power: Exponent of the form `power`.
        std_eps: Added to the std.
    """
    reward, groups = rows["reward"], rows.by("group")
    mean = groups.mean(reward)
    if form == "exp":
        weight = (1 - mean).exp()
    elif form == "log":
        weight = -(0.02 + mean).clamp_min(1e-9).log()
    else:
        weight = (1.05 - mean).clamp_min(0) ** power
    return weight.clamp_min(0) * standardised(reward, groups, std_eps)


def of_groups(values: Tensor, groups: Groups) -> Tensor:
    """Return one value a group, (groups,), of values that are equal within each, (N,)."""
    found = torch.zeros(groups.num, dtype=values.dtype)
    found[groups.of] = values
    return found


def _fitted_beta(means: Tensor) -> tuple[float, float]:
    """The parameters of BNPO's Beta for the groups' mean rewards, (groups,)."""
    variance = float(means.var()) if len(means) > 1 else 0.0
    if variance <= 0:
        return 1.0, 1.0
    mean = float(means.mean())
    spread = mean * (1 - mean) / variance - 1
    return max(1.0, 1 + spread * mean / 3), max(1.0, 1 + spread * (1 - mean) / 3)


def _beta_density(at: Tensor, alpha: float, beta: float) -> Tensor:
    """The density of Beta(alpha, beta), (N,)."""
    first, second = (torch.tensor(value, dtype=torch.float64) for value in (alpha, beta))
    norm = torch.lgamma(first + second) - torch.lgamma(first) - torch.lgamma(second)
    return (norm + (first - 1) * at.log() + (second - 1) * (1 - at).log()).exp()


def _softmax_weight(accuracy: Tensor, valid: Tensor, groups: Groups, temperature: float) -> Tensor:
    """DGPO's weight of each row's group, (N,): a softmax over valid groups, times their number; 0 for the others."""
    among = of_groups(valid, groups)
    if not bool(among.any()):
        return torch.zeros_like(accuracy)
    logits = (-of_groups(accuracy, groups) / temperature).masked_fill(~among, -torch.inf)
    return (among.sum() * logits.softmax(0))[groups.of]
