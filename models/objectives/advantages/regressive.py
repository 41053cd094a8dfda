"""Log-ratios of a group fitted to its rewards, as coefficients of log-probs: REBEL, CoPG, Reg-GRPO, FlowRL.

All return A (N,) with -grad L = (1 / N) sum_i (1 / |o_i|) sum_t A_i grad log pi_t, so that the loss `reinforce` with
the aggregation `sequence_mean` takes the step. Pairs are every two rows of a group that have a reward.
"""

from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.losses import MAX_LOG_RATIO
from gradus.models.objectives.rows import Rows


@component(
    "advantage",
    paper="arXiv 2404.16767",
    needs=("reward", "group", "now.logp", "old.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
    compares_group=True,
)
def rebel(rows: Rows, *, eta: Annotated[float, Gt(0.0)] = 1.0) -> Tensor:
    """REBEL: coefficients of log pi for L = mean over pairs of ((l_i - l_j) / eta - (r_i - r_j))^2, one a row, (N,).

    l_i = sum_t (log pi - log pi_old). Regressing Relative Rewards, arXiv 2404.16767, algorithm 1, on all
    pairs of a group where the paper draws one. At the first step of an update it is the gradient of RLOO, by a factor.

    Args:
        eta: Size of the step: log-ratios are fitted to eta times the difference of rewards.
    """
    log_ratio = rows.row_sum((rows["now.logp"] - rows["old.logp"]).double())
    return _as_row_mean(rows, _pull(rows, rows["reward"] - log_ratio / eta) * 2 / eta)


@component(
    "advantage",
    paper="arXiv 2406.19185",
    needs=("reward", "group", "now.logp", "reference.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
    compares_group=True,
)
def copg(rows: Rows, *, beta: Annotated[float, Gt(0.0)] = 0.1) -> Tensor:
    """CoPG: coefficients of log pi for L = mean over pairs of (R_i - R_j)^2 / (2 beta), one a row, (N,).

    R_i = r_i - beta sum_t (log pi - log pi_ref), the regularised reward. Contrastive Policy Gradient,
    arXiv 2406.19185: no ratio to the sampler is needed, so that stored rollouts of any policy may be used. It is
    the form of `rebel` with the reference in the place of the old policy.

    Args:
        beta: Strength of the pull to the reference.
    """
    log_ratio = rows.row_sum((rows["now.logp"] - rows["reference.logp"]).double())
    return _as_row_mean(rows, _pull(rows, rows["reward"] - beta * log_ratio))


@component(
    "advantage",
    paper="arXiv 2506.07464",
    needs=("reward", "group", "now.logp", "old.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
    compares_group=True,
)
def reg_grpo(
    rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-4, least_std: Annotated[float, Gt(0.0)] = 1.0
) -> Tensor:
    """Reg-GRPO: coefficients of log pi for L = mean_i (A_i - (l_i - mean(l)) / s)^2, one a row, (N,).

    l_i = sum_t (log pi - log pi_old), A the advantage of `grpo`, mean and s = max(std(l), least_std) of the group, s
    without gradient. DeepVideo-R1, arXiv 2506.07464. Groups without variance of rewards are left out: only their
    log-ratios would be pulled together. Deviation: log-ratios are all 0 as an update begins, where the paper's quotient
    is 0 / 0; so the std has a least value.

    Args:
        std_eps: Added to the std of rewards.
        least_std: Least std of the log-ratios, nats.
    """
    groups, advantage = rows.by("group"), grpo(rows, std_eps=std_eps)
    judged = groups.varied(rows["reward"]) & ~rows["reward"].isnan()
    log_ratio = rows.row_sum((rows["now.logp"] - rows["old.logp"]).double())
    log_ratio = torch.where(judged, log_ratio, torch.nan)
    std = groups.std(log_ratio, ddof=1).clamp_min(least_std)
    residual = torch.where(judged, advantage - (log_ratio - groups.mean(log_ratio)) / std, torch.nan)
    # The mean of the log-ratios has a gradient too: residuals are centred.
    pull = torch.where(judged, 2 * (residual - groups.mean(residual)) / std, 0.0)
    return _as_row_mean(rows, pull / max(1, int(judged.sum())))


@component(
    "advantage",
    paper="arXiv 2509.15207",
    needs=("reward", "group", "now.logp", "old.logp", "reference.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
)
def flowrl(
    rows: Rows,
    *,
    beta: Annotated[float, Gt(0.0)] = 15.0,
    clip: Annotated[float, Ge(0.0)] = 0.2,
    std_eps: Annotated[float, Ge(0.0)] = 1e-6,
) -> Tensor:
    """FlowRL: coefficients of log pi for L = mean_i w_i (log Z + h_i - beta R_i)^2, one a row, (N,).

    h_i = mean_t (log pi - log pi_ref), R the advantage of `grpo`, w_i = clamp(exp(sum_t (log pi - log pi_old)), 1 -
    clip, 1 + clip) without gradient: trajectory balance, by which pi approaches pi_ref exp(beta R) / Z. FlowRL, arXiv
    2509.15207, as in the authors' code (dp_actor.py). Deviation: log Z is the one that is best for each group,
    sum w (beta R - h) / sum w, where the paper trains a network on the prompt's hidden states; so a group of one row
    has nothing to learn. One of equal rewards is pulled to the reference. 0 for rows without a reward or a token.

    Args:
        beta: Weight of the advantage in the log of the target (the authors' 15).
        clip: Largest distance of a row's weight from 1.
        std_eps: Added to the std of rewards.
    """
    groups, now = rows.by("group"), rows["now.logp"].double()
    judged = ~rows["reward"].isnan() & (rows.row_tokens > 0)
    ratio = rows.row_sum(now - rows["old.logp"].double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight = torch.where(judged, ratio.clamp(1 - clip, 1 + clip), torch.nan)
    lack = beta * grpo(rows, std_eps=std_eps) - rows.row_mean(now - rows["reference.logp"].double())
    log_z = groups.sum(weight * lack) / groups.sum(weight)
    # Z is at its best, so that L does not change with it: only h has a gradient.
    return (2 * weight * (lack - log_z)).nan_to_num(0.0) * (groups.count(weight) > 1)


def _pull(rows: Rows, values: Tensor) -> Tensor:
    """The mean over all pairs of the step of x_i - x_j, summed by row, (N,): (n x_i - sum x) / pairs."""
    groups = rows.by("group")
    counts = groups.count(values)
    num_pairs = float(torch.where(values.isnan(), 0.0, (counts - 1) / 2).sum())
    return (counts * values - groups.sum(values)).nan_to_num(0.0) / max(1.0, num_pairs)


def _as_row_mean(rows: Rows, slope: Tensor) -> Tensor:
    """Coefficients of the mean over rows of the mean over tokens that have this slope along each token, (N,)."""
    return slope * rows.row_tokens * float((rows.row_tokens > 0).sum())
