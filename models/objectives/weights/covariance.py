"""Weights from how much a step on a token would change the policy's entropy: covariance, STEER."""

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows

_MIN_PEAK = 0.02
"""Largest |Omega| below which STEER's exponential form counts as this; the authors' number."""


@component("weight", paper="arXiv 2505.22617", needs=("now.logp", "old.logp", "advantage"))
def clip_cov(
    rows: Rows,
    *,
    frac: Annotated[float, Gt(0.0), Le(1.0)] = 2e-4,
    above: float = 1.0,
    below: float = 5.0,
    clip_low: Annotated[float, Ge(0.0)] = 1.0,
    clip_high: Annotated[float, Ge(0.0)] = 1.0,
    seed: Annotated[int, Ge(0)] = 0,
) -> tuple[Tensor, Metrics]:
    """Clip-Cov: weigh a few random tokens 0 whose C_t = (A_t - mean A)(log pi_t - mean log pi) is in (above, below).

    The Entropy Mechanism, arXiv 2505.22617, eq. 10 and 11: as many of them as frac * M, M the counted tokens, at least
    one. Tokens that a clip of these bounds cuts are none of them. As in verl, with means over the tokens of the step,
    where verl takes a micro-batch; the draw is that of a generator of this seed in every step. Metrics: clip_cov_frac,
    the tokens left out; cov_mean, the mean of C.

    Args:
        frac: Share of the tokens that is left out.
        above: Smallest covariance of such a token.
        below: Largest covariance of such a token.
        clip_low: Ratio floor of the loss is 1 - clip_low; the authors take 1, no clip.
        clip_high: Ratio ceiling of the loss is 1 + clip_high.
        seed: Seed of the draw.
    """
    covariance, advantage = _covariance(rows), rows["advantage"]
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    cut = ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))
    inside = (covariance > above) & (covariance < below) & rows.mask & ~cut
    found = inside.nonzero()[:, 0]
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
    weight = torch.ones(len(rows.row))
    weight[found[order[: _number(rows, frac)]]] = 0.0
    return weight, {"clip_cov_frac": 1 - weight, "cov_mean": covariance}


@component("weight", paper="arXiv 2505.22617", needs=("now.logp", "advantage"))
def kl_cov(rows: Rows, *, frac: Annotated[float, Gt(0.0), Le(1.0)] = 2e-3) -> tuple[Tensor, Metrics]:
    """KL-Cov: weigh the tokens of largest C_t = (A_t - mean A)(log pi_t - mean log pi) 1 and all others 0.

    The Entropy Mechanism, arXiv 2505.22617, eq. 12 and 13: as many of them as frac * M, M the counted tokens, at least
    one. It is the weight of a second term, the loss `abs_log_ratio`, beside the unclipped surrogate. As in verl, with
    means over the tokens of the step, where verl takes a micro-batch. Metrics: kl_cov_frac, the tokens chosen;
    cov_mean, the mean of C.

    Args:
        frac: Share of the tokens that is held.
    """
    covariance = _covariance(rows)
    most = torch.where(rows.mask, covariance, -torch.inf).topk(min(_number(rows, frac), int(rows.mask.sum()))).indices
    weight = torch.zeros(len(rows.row))
    weight[most] = 1.0
    return weight, {"kl_cov_frac": weight, "cov_mean": covariance}


@component("weight", paper="arXiv 2510.10150", needs=("now.logp", "now.entropy", "old.logp", "advantage"))
def steer(
    rows: Rows,
    *,
    form: Literal["linear", "exponential"] = "linear",
    low: Annotated[float, Gt(0.0), Le(1.0)] = 0.8,
    high: Annotated[float, Ge(1.0)] = 1.2,
) -> tuple[Tensor, Metrics]:
    """STEER: weigh a token less the more a step on it would change the entropy, |Omega_t|.

    Omega = (A / pi_old) pi (1 - pi) (log pi + H); linear: w = high - (|Omega| - min) (high - low) / (max - min);
    exponential: w = low^(|Omega| / max(max, 0.02)). Rethinking Entropy Interventions in RLVR, arXiv 2510.10150, as
    in the authors' code (core_algos.py, symmetric), with min and max over the counted tokens of the step, where they
    take a micro-batch; (low + high) / 2 if all are equal. Metric: entropy_change_mean, the mean of |Omega|.

    Args:
        form: Decrease from the smallest change to the largest.
        low: Weight at the largest change.
        high: Weight at the smallest change; the exponential form has 1.
    """
    logp, entropy = rows["now.logp"].double(), rows["now.entropy"].double()
    pi = logp.exp().clamp(1e-8, 1 - 1e-8)
    before = rows["old.logp"].double().exp().clamp(1e-8, 1.0)
    change = (rows["advantage"].double() / before * pi * (1 - pi) * (pi.log() + entropy)).abs().nan_to_num(0.0)
    counted = change[rows.mask]
    least, most = (float(counted.min()), float(counted.max())) if len(counted) else (0.0, 0.0)
    if form == "exponential":
        weight = (math.log(low) * change / max(most, _MIN_PEAK)).exp()
    elif most > least:
        weight = high - (change - least) * (high - low) / (most - least)
    else:
        weight = torch.full_like(change, (low + high) / 2)
    return torch.where(rows.mask, weight, 0.0).float(), {"entropy_change_mean": change.float()}


def _covariance(rows: Rows) -> Tensor:
    """The token's part in the covariance of advantage and log-prob over the counted tokens, (M,) float64."""
    advantage, logp = rows["advantage"].double(), rows["now.logp"].double()
    if not bool(rows.mask.any()):
        return torch.zeros_like(logp)
    return (advantage - advantage[rows.mask].mean()) * (logp - logp[rows.mask].mean())


def _number(rows: Rows, frac: float) -> int:
    return max(1, int(frac * int(rows.mask.sum())))
