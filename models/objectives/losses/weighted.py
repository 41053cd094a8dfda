"""REINFORCE with weights that carry no gradient (CISPO, DPPO, REC, TOPR, VESPO), or a penalty (OPMD, AsymRE, LLDS).

The first are L_t = -sg(w_t) A_t log pi_t. The weights are made of the ratio to the policy that sampled the rows, as it
recorded its log-probs: a correction beside them would count it twice. `cispo` can take the policy's own at the start of
the update. Metric of each of them: weight_mean, the mean of w.
"""

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 2506.13585", needs=("now.logp", "old.logp", "sampler.logp", "advantage"))
def cispo(
    rows: Rows,
    *,
    floor: Annotated[float, Ge(0.0), Le(1.0)] = 0.0,
    cap: Annotated[float, Ge(1.0)] = 5.0,
    behaviour: Literal["old", "sampler"] = "old",
) -> tuple[Tensor, Metrics]:
    """CISPO: w_t = clamp(rho_t, floor, cap), rho_t = pi_t / pi_behaviour,t.

    MiniMax-M1, arXiv 2506.13585, eq. 4 and 5: the weight is clipped, not the surrogate, so that no token loses its
    gradient. Only the upper bound is used there; 5 is that of ScaleRL (arXiv 2510.13786). Metric: clip_frac, the
    tokens whose weight is clipped.

    Args:
        floor: Least weight.
        cap: Largest weight.
        behaviour: Denominator of the ratio: the policy when the update began, or what the sampler recorded.
    """
    denominator = {"old": rows["old.logp"], "sampler": rows["sampler.logp"]}[behaviour]
    ratio = _ratio(rows["now.logp"] - denominator)
    weight = ratio.clamp(floor, cap)
    loss, metrics = _weighted(rows, weight)
    return loss, {**metrics, "clip_frac": (weight != ratio).float()}


@component("loss", paper="arXiv 2602.04879", needs=("now.logp", "sampler.logp", "advantage"))
def dppo(
    rows: Rows,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    limit_low: Annotated[float, Ge(0.0)] = 0.15,
    limit_high: Annotated[float, Ge(0.0)] = 0.15,
    cap: Annotated[float, Ge(1.0)] = 20.0,
) -> tuple[Tensor, Metrics]:
    """DPPO: w_t = min(rho_t, cap) inside a trust region of probabilities, 0 where a step would lead further out of it.

    Divergence Proximal Policy Optimization, arXiv 2602.04879, its binary forms (the token against all others), as in
    verl: D = |pi_t - mu_t| (tv), or mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi)) (kl). A token of A > 0 is
    masked if pi_t > mu_t and D > limit_high, one of A < 0 if pi_t < mu_t and D > limit_low; mu is the sampler.
    Metric: masked_frac. Limits are verl's example for tv; for kl it has 0.05.

    Args:
        divergence: tv, or kl.
        limit_low: Largest divergence of a token that became less probable.
        limit_high: Largest divergence of a token that became more probable.
        cap: Largest weight.
    """
    log_now, log_then = rows["now.logp"].detach(), rows["sampler.logp"]
    now, then = log_now.double().exp(), log_then.double().exp()
    change = now - then
    if divergence == "kl":
        others = torch.xlogy(1 - then, 1 - then) - torch.special.xlog1py(1 - then, -now)
        change = torch.copysign(then * (log_then - log_now) + others, change)
    outside = torch.where(rows["advantage"] > 0, change > limit_high, change < -limit_low)
    weight = _ratio(log_now - log_then).clamp(max=cap).masked_fill(outside, 0.0)
    loss, metrics = _weighted(rows, weight)
    return loss, {**metrics, "masked_frac": outside.float()}


@component("loss", paper="arXiv 2509.24203", needs=("now.logp", "sampler.logp", "advantage"))
def rec(
    rows: Rows,
    *,
    clip: Literal["one_side", "two_side", "ring"] = "one_side",
    importance: bool = False,
    clip_low: Annotated[float, Ge(0.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.2,
    outer_low: Annotated[float, Ge(0.0)] = 0.6,
    outer_high: Annotated[float, Ge(0.0)] = 2.0,
) -> tuple[Tensor, Metrics]:
    """REC: w_t = 1 (rho_t with `importance`) where a mask of the ratio lets the token learn, else 0.

    Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm, arXiv 2509.24203, with the masks of its code: one_side
    is rho <= 1 + high for A > 0, rho >= 1 - low for A < 0 (as `clip`, whose gradient it has with `importance`);
    two_side is both for all tokens; ring adds to it what is far off and has to come back: rho <= 1 - outer_low for
    A > 0, rho >= 1 + outer_high for A < 0. Metric: masked_frac.

    Args:
        clip: Mask.
        importance: Weigh by the ratio; without it the mask alone regularises.
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high.
        outer_low: A ratio of at most 1 - outer_low is beyond the ring.
        outer_high: A ratio of at least 1 + outer_high is beyond the ring.
    """
    ratio, upwards = _ratio(rows["now.logp"] - rows["sampler.logp"]), rows["advantage"] > 0
    if clip == "one_side":
        inside = torch.where(upwards, ratio <= 1 + clip_high, ratio >= 1 - clip_low)
    else:
        inside = (ratio <= 1 + clip_high) & (ratio >= 1 - clip_low)
    if clip == "ring":
        inside |= torch.where(upwards, ratio <= 1 - outer_low, ratio >= 1 + outer_high)
    kept = inside.to(ratio.dtype)
    loss, metrics = _weighted(rows, kept * ratio if importance else kept)
    return loss, {**metrics, "masked_frac": 1 - kept}


@component("loss", paper="arXiv 2503.14286", needs=("now.logp", "sampler.logp", "advantage"))
def topr(rows: Rows, *, cap: Annotated[float, Gt(0.0)] = 1.0) -> tuple[Tensor, Metrics]:
    """TOPR: w_t = 1 for A_t >= 0, min(rho_i, cap) for A_t < 0, rho_i the likelihood ratio of the whole completion.

    Tapered Off-Policy REINFORCE, arXiv 2503.14286, with its canonical bounds: right completions are learned as in
    supervised fine-tuning, wrong ones fade as the policy moves away from them. The log-prob of a completion is a sum,
    so that the aggregation is `sequence_sum` or `fixed_length`.

    Args:
        cap: Largest weight of a token with A < 0.
    """
    log_ratio = rows.row_sum((rows["now.logp"] - rows["sampler.logp"]).detach()).clamp(max=math.log(cap))
    return _weighted(rows, torch.where(rows["advantage"] < 0, rows.of_token(log_ratio.exp()), 1.0))


@component("loss", paper="arXiv 2602.10693", needs=("now.logp", "sampler.logp", "advantage"))
def vespo(
    rows: Rows,
    *,
    power_positive: Annotated[float, Ge(0.0)] = 2.0,
    decay_positive: Annotated[float, Ge(0.0)] = 3.0,
    power_negative: Annotated[float, Ge(0.0)] = 3.0,
    decay_negative: Annotated[float, Ge(0.0)] = 2.0,
) -> tuple[Tensor, Metrics]:
    """VESPO: w_t = rho_i^k exp(lambda (1 - rho_i)), rho_i the likelihood ratio of the whole completion.

    VESPO, arXiv 2602.10693, section 3.4: the weight is 1 at rho = 1, falls to 0 on both sides of k / lambda, and knows
    no length normalisation. k and lambda are those of tokens with A >= 0 or A < 0; defaults are TRL's.
    Deviation: |log rho_i| is cut at MAX_LOG_RATIO.

    Args:
        power_positive: k for A >= 0.
        decay_positive: lambda for A >= 0.
        power_negative: k for A < 0.
        decay_negative: lambda for A < 0.
    """
    whole = rows.row_sum((rows["now.logp"] - rows["sampler.logp"]).detach())
    log_ratio = whole.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    excess = 1 - log_ratio.exp()
    positive = (power_positive * log_ratio + decay_positive * excess).exp()
    negative = (power_negative * log_ratio + decay_negative * excess).exp()
    return _weighted(rows, torch.where(rows["advantage"] >= 0, rows.of_token(positive), rows.of_token(negative)))


@component(
    "loss",
    paper="arXiv 2501.12599",
    needs=("now.logp", "sampler.logp", "advantage"),
    acts_without_advantage=True,
)
def opmd(rows: Rows, *, tau: Annotated[float, Ge(0.0)] = 0.1) -> tuple[Tensor, Metrics]:
    """OPMD: L_t = -A_t log pi_t + tau / 2 S_i^2 / |o_i|, S_i the log ratio of the whole completion to its sampler.

    Online policy mirror descent of Kimi k1.5, arXiv 2501.12599, as in arXiv 2509.24203: summed over a completion
    (aggregation `sequence_sum` or `fixed_length`) it is -A_i log pi(o_i) + tau / 2 (log pi(o_i) / mu(o_i))^2, which
    holds whoever sampled the rows. Metric: log_ratio_mean, the mean of S.

    Args:
        tau: Strength of the penalty.
    """
    whole = rows.row_sum(rows["now.logp"] - rows["sampler.logp"])
    penalty = whole.square() / rows.row_tokens.clamp_min(1)
    loss = -rows["advantage"] * rows["now.logp"] + tau / 2 * rows.of_token(penalty)
    return loss, {"log_ratio_mean": rows.of_token(whole.detach())}


@component(
    "loss",
    paper="arXiv 2506.20520",
    needs=("now.logp", "advantage"),
    acts_without_advantage=True,
    needs_sampler=False,
)
def asymre(rows: Rows, *, shift: Annotated[float, Ge(0.0)] = 0.1) -> tuple[Tensor, Metrics]:
    """AsymRE: L_t = -(A_t + shift) log pi_t, REINFORCE with a baseline that is lower than the mean by `shift`.

    Asymmetric REINFORCE, arXiv 2506.20520: off-policy, what succeeded counts more than what failed; the baseline is
    V = mean(r) - 0.1 there. By arXiv 2509.24203 it is a penalty shift KL(mu || pi). No ratio and no clip.

    Args:
        shift: Difference of the mean reward and the baseline; 0 is `reinforce`.
    """
    return -(rows["advantage"] + shift) * rows["now.logp"], {}


@component(
    "loss",
    paper="arXiv 2512.04220",
    needs=("now.logp", "old.logp", "advantage"),
    acts_without_advantage=True,
    regulariser=True,
)
def llds(rows: Rows) -> tuple[Tensor, Metrics]:
    """LLDS: L_t = max(0, log pi_old,t - log pi_t) in completions with A >= 0 that became less likely as a whole.

    On GRPO Collapse in Search-R1, arXiv 2512.04220: a term beside a policy loss, which charges the tokens that lost
    probability. The gate, sum_t (log pi_old - log pi) > 0, carries no gradient. As in the authors' code with its gate
    of responses and without that of final answers. Metric: displaced_frac, the tokens of such completions.
    """
    fall = rows["old.logp"] - rows["now.logp"]
    gate = rows.of_token(rows.row_sum(fall.detach()) > 0) & (rows["advantage"] >= 0)
    return torch.where(gate, fall.relu(), 0.0), {"displaced_frac": gate.float()}


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _weighted(rows: Rows, weight: Tensor) -> tuple[Tensor, Metrics]:
    """Return -w A log pi, and the weights as a metric."""
    return -weight.detach() * rows["advantage"] * rows["now.logp"], {"weight_mean": weight.detach()}
