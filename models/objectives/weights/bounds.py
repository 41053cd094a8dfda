"""Bounds of the importance ratio that follow from all tokens of a step, as weights: BAPO, HAPO.

A clipped surrogate has the gradient of the unclipped one, or none. A weight is made where the gradient will be taken,
so that it can leave out the tokens that bounds of its own cut. For the loss `clip` with clip_low = 1 and clip_high =
1e9, which cuts nothing; the value of the loss then lacks the constants of clipped tokens.
"""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows

_LEAST_ENTROPY = 1e-8


@component("weight", paper="arXiv 2510.18927", needs=("now.logp", "old.logp", "advantage"))
def bapo(
    rows: Rows,
    *,
    low: Annotated[float, Ge(0.0)] = 0.6,
    low_max: Annotated[float, Ge(0.0)] = 0.9,
    low_step: Annotated[float, Gt(0.0)] = 0.05,
    high: Annotated[float, Gt(0.0)] = 1.2,
    high_max: Annotated[float, Gt(0.0)] = 3.0,
    high_step: Annotated[float, Gt(0.0)] = 0.1,
    target: Annotated[float, Ge(0.0)] = 1.0,
    dual: Annotated[float, Gt(1.0)] = 3.0,
) -> tuple[Tensor, Metrics]:
    """BAPO: leave out the tokens that PPO's clip would cut with bounds searched until positive tokens have their share.

    While P / N < target: low += low_step up to low_max, then high += high_step up to high_max; P = sum over A >= 0 of
    min(rho, high) A, N = sum over A < 0 of max(rho, low) |A|, over all tokens of the step. BAPO, arXiv 2510.18927, as
    in the authors' code (recipe/bapo). As there, raising `low` alone raises N, so that the second search decides.
    Metrics: bapo_low_max and bapo_high_max, the bounds; bapo_cut_frac, the tokens left out.

    Args:
        low: Ratio floor at first.
        low_max: Largest ratio floor.
        low_step: Step of the floor.
        high: Ratio ceiling at first.
        high_max: Largest ratio ceiling.
        high_step: Step of the ceiling.
        target: Positive part over negative part; 1 is half of the whole.
        dual: Ratio from which a token of negative advantage has no gradient.
    """
    advantage, ratio = rows["advantage"].double(), _ratio(rows)
    rising, falling = (rows.mask & (advantage >= 0)), (rows.mask & (advantage < 0))
    up, down = (ratio[rising], advantage[rising]), (ratio[falling], -advantage[falling])

    def balanced(low: float, high: float) -> bool:
        positive, negative = ((up[0].clamp(max=high) * up[1]).sum(), (down[0].clamp(min=low) * down[1]).sum())
        return float(negative) <= 0 or float(positive / negative) >= target

    while not balanced(low, high) and low < low_max:
        low = min(low + low_step, low_max)
    while not balanced(low, high) and high < high_max:
        high = min(high + high_step, high_max)
    kept = _kept(ratio, advantage, torch.full_like(ratio, low), torch.full_like(ratio, high), dual).float()
    bounds = {"bapo_low_max": torch.full_like(kept, low), "bapo_high_max": torch.full_like(kept, high)}
    return kept, {**bounds, "bapo_cut_frac": 1 - kept}


@component("weight", paper="arXiv 2509.16591", needs=("now.logp", "now.entropy", "old.logp", "advantage"))
def hapo(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0), Le(1.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.2,
    widen: Annotated[float, Ge(0.0)] = 1.0,
    redistribute: Annotated[float, Ge(0.0), Le(1.0)] = 1.0,
    pivot: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
    dual: Annotated[float, Gt(1.0)] = 3.0,
) -> tuple[Tensor, Metrics]:
    """HAPO: bounds and size of the advantage of a token by its place h_t between the entropies of the step.

    h = log H less its `pivot` quantile, divided by its largest value where positive, by its smallest one's size where
    negative, so in [-1, 1]. Floor 1 - clip_low (1 - widen h) if h <= 0, ceiling 1 + clip_high (1 + widen h) if h > 0:
    certain tokens may fall further, uncertain ones rise further. The advantage is multiplied by 1 + redistribute h
    where h > 0 and rho is outside of (1 - floor's distance / 2, 1 + ceiling's distance / 2), and where h <= 0 and rho
    is inside. A token that those bounds cut weighs 0. HAPO, arXiv 2509.16591, as in the authors' README and train.md.
    Deviations: over the step's tokens, where they take a micro-batch; their code divides negative h by the smallest
    value itself, which makes it positive. Metrics: hapo_cut_frac, the tokens left out; hapo_factor_mean.

    Args:
        clip_low: Distance of the ratio floor at h >= 0.
        clip_high: Distance of the ratio ceiling at h <= 0.
        widen: Share by which a distance grows at |h| = 1.
        redistribute: Share by which an advantage grows or shrinks at |h| = 1.
        pivot: Quantile of the entropies that counts as neither certain nor uncertain.
        dual: Ratio from which a token of negative advantage has no gradient.
    """
    ratio, h = _ratio(rows), _standing(rows, pivot)
    down = clip_low * (1 - widen * h.clamp_max(0))
    up = clip_high * (1 + widen * h.clamp_min(0))
    inside = (ratio > 1 - down / 2) & (ratio < 1 + up / 2)
    factor = torch.where((h > 0) ^ inside, 1 + redistribute * h, 1.0)
    kept = _kept(ratio, rows["advantage"].double(), 1 - down, 1 + up, dual).double()
    weight = (kept * factor).float()
    return weight, {"hapo_cut_frac": 1 - kept.float(), "hapo_factor_mean": factor.float()}


def _standing(rows: Rows, pivot: float) -> Tensor:
    """The place of each token between the log entropies of the step, (M,) float64 in [-1, 1], 0 at the pivot."""
    level = rows["now.entropy"].double().clamp_min(_LEAST_ENTROPY).log()
    counted = level[rows.mask].sort().values
    if not len(counted):
        return torch.zeros_like(level)
    middle = counted[round(pivot * (len(counted) - 1))]
    tiny = torch.finfo(torch.float64).tiny
    above, below = (counted[-1] - middle).clamp_min(tiny), (middle - counted[0]).clamp_min(tiny)
    h = level - middle
    return torch.where(rows.mask, torch.where(h > 0, h / above, h / below), 0.0)


def _ratio(rows: Rows) -> Tensor:
    return (rows["now.logp"] - rows["old.logp"]).double().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _kept(ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor, dual: float) -> Tensor:
    """The tokens at which PPO's surrogate with these bounds and a dual clip has a gradient, (M,) bool."""
    return torch.where(advantage >= 0, ratio <= high, (ratio >= low) & (ratio <= dual))
