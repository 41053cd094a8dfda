"""Importance weights between two bounds, and completions left out whole: IcePop, sequence and geometric rejection.

w_t = p_trainer / p_sampler of a token, s = prod_t w_t of its completion, g = s^(1 / |o|) the geometric mean of its
tokens' weights. Tokens and completions left out have weight 0 and stay in the denominators of the aggregation, where
verl takes them out of its mask. Deviation: |log w|, |log s| are cut at MAX_LOG_RATIO.
"""

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.corrections import as_weights, log_weights, metrics
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows

Level = Literal["none", "token", "sequence", "geometric"]
Numerator = Literal["old", "now"]


@component("correction", paper="IcePop, Ling team, 2025", needs=("now.logp", "old.logp", "sampler.logp"))
def icepop(
    rows: Rows,
    *,
    low: Annotated[float, Ge(0.0)] = 0.5,
    high: Annotated[float, Gt(0.0)] = 5.0,
    numerator: Numerator = "old",
) -> tuple[Tensor, Metrics]:
    """Weight each token by w_t if low <= w_t <= high, else by 0.

    IcePop, of the Ling team's "Small Leak Can Sink a Great Ship" (2025), with its bounds 0.5 and 5.

    Args:
        low: Smallest weight that counts.
        high: Largest weight that counts.
        numerator: old: the policy as the update began; now: as it is at the step.
    """
    weight = as_weights(_log_ratio(rows, numerator))
    kept = (weight >= low) & (weight <= high)
    return torch.where(kept, weight, 0.0), metrics(torch.where(kept, weight, 0.0), ~kept)


@component("correction", paper="arXiv 1802.01561", needs=("now.logp", "old.logp", "sampler.logp"))
def truncated(
    rows: Rows,
    *,
    level: Level = "geometric",
    cap: Annotated[float, Gt(0.0)] = 2.0,
    numerator: Numerator = "old",
) -> tuple[Tensor, Metrics]:
    """Weight each token by min(w_t, cap), min(s, cap), or, normalised by length, min(g, cap).

    The cut-off of IMPALA, arXiv 1802.01561, at a level of one's choice: sequence weights grow with the length of a
    completion, geometric ones do not (GSPO's ratio, arXiv 2507.18071, eq. 7). See `token_truncated` and
    `sequence_truncated`.

    Args:
        level: token, sequence (s), geometric (g), or none: all weights are 1.
        cap: Largest weight.
        numerator: old: the policy as the update began; now: as it is at the step.
    """
    weight = _of_level(rows, _log_ratio(rows, numerator), level)
    return weight.clamp(max=cap), metrics(weight.clamp(max=cap), weight >= cap)


@component(
    "correction", paper="Liu et al., When Speed Kills Stability, 2025", needs=("now.logp", "old.logp", "sampler.logp")
)
def rejection(
    rows: Rows,
    *,
    by: Literal["geometric", "sequence", "k3"] = "geometric",
    low: Annotated[float, Ge(0.0)] = 0.999,
    high: Annotated[float, Ge(0.0)] = 1.001,
    level: Level = "none",
    cap: Annotated[float, Gt(0.0)] = 2.0,
    numerator: Numerator = "old",
) -> tuple[Tensor, Metrics]:
    """Leave out completions whose statistic is outside [low, high]; weight the tokens of the others as `truncated`.

    The statistic is g, s, or the k3 estimate of KL(sampler || trainer) a token, mean_t (w_t - 1 - log w_t), whose low
    is 0. Liu et al., When Speed Kills Stability (2025), and the rejection of verl's rollout correction (seq_mean_k1,
    seq_sum_k1, seq_mean_k3), with its bounds.

    Args:
        by: Statistic of a completion.
        low: Smallest statistic that counts.
        high: Largest statistic that counts.
        level: Weights of the tokens that are left, see `truncated`.
        cap: Largest weight of them.
        numerator: old: the policy as the update began; now: as it is at the step.
    """
    log = _log_ratio(rows, numerator)
    if by == "k3":
        statistic = rows.row_mean((as_weights(log) - 1 - log).clamp_min(0.0))
    else:
        statistic = as_weights(rows.row_mean(log) if by == "geometric" else rows.row_sum(log))
    kept = rows.of_token((statistic >= low) & (statistic <= high))
    weight = torch.where(kept, _of_level(rows, log, level).clamp(max=cap), 0.0)
    return weight, {**metrics(weight, (weight >= cap) | ~kept), "correction_rejected_frac": (~kept).float()}


def _log_ratio(rows: Rows, numerator: Numerator) -> Tensor:
    """Log w of each token, (M,)."""
    return log_weights(rows, {"now": rows["now.logp"], "old": rows["old.logp"]}[numerator])


def _of_level(rows: Rows, log: Tensor, level: Level) -> Tensor:
    """Weights of the tokens, (M,), before the cap."""
    if level == "none":
        return torch.ones_like(log)
    if level == "token":
        return as_weights(log)
    return rows.of_token(as_weights(rows.row_sum(log) if level == "sequence" else rows.row_mean(log)))
