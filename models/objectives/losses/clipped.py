"""The clipped surrogate on token ratios (PPO), to the policy before the update or to the sampler."""

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 1707.06347", needs=("now.logp", "old.logp", "advantage"))
def clip(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.28,
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate: L_t = -min(rho_t A_t, b_t A_t), rho_t = exp(logp - logp_old), b_t in [1 - low, 1 + high].

    PPO, arXiv 1707.06347, eq. 7; separate bounds as in DAPO, arXiv 2503.14476, section 3.1.
    Metrics: clip_frac_low (A < 0 and rho < 1 - low), clip_frac_high (A > 0 and rho > 1 + high), the tokens whose
    gradient the clip takes away; ratio_mean and ratio_max. Deviation: see MAX_LOG_RATIO.

    Args:
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high (DAPO's clip-higher, arXiv 2503.14476).
    """
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return surrogate(ratio, rows["advantage"], 1 - clip_low, 1 + clip_high)


@component("loss", paper="arXiv 1707.06347", needs=("now.logp", "sampler.logp", "advantage"))
def behaviour_clip(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.28,
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate (see `clip`) on rho_t = pi_t / pi_sampler,t, with what the sampler recorded.

    PPO, arXiv 1707.06347, eq. 7, as it was written: the policy that sampled is the one stayed near (bypass mode of
    verl's rollout correction). A row that was sampled with guidance and is trained for the prompt without it has the
    ratio pi(o_t | q) / pi_old(o_t | q, guidance), which is off 1 from the first step on (Guide-GRPO, arXiv 2506.13923).
    A correction would count the ratio twice.

    Args:
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high.
    """
    ratio = (rows["now.logp"] - rows["sampler.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return surrogate(ratio, rows["advantage"], 1 - clip_low, 1 + clip_high)


def surrogate(ratio: Tensor, advantage: Tensor, low: Any, high: Any) -> tuple[Tensor, Metrics]:
    """Return -min(ratio A, clamp(ratio, low, high) A) and the metrics of `clip`, (M,); bounds are numbers or (M,).

    Ratios are finite. Written as -A ((1 - c) ratio + c clamp(ratio)), c = 1 where the clip acts: the same numbers and
    gradients to the bit, in less than half of the time that the gradients of the minimum and of the clamp take.
    """
    given = ratio.detach()
    under, over = beyond(given, advantage, low, high)
    clipped = under + over
    bound = given.clamp(low, high).mul_(clipped).neg_()
    return torch.addcmul(bound, clipped.sub_(1), ratio) * advantage, {
        "clip_frac_low": under,
        "clip_frac_high": over,
        "ratio_mean": given,
        "ratio_max": given,
    }


def beyond(values: Tensor, advantage: Tensor, low: Any, high: Any) -> tuple[Tensor, Tensor]:
    """Return where A < 0 and values < low, and where A > 0 and values > high, 1 or 0 (M,); bounds as of `surrogate`.

    By signs, since comparisons and their conversion to numbers take three times as long on a CPU.
    """
    under = torch.maximum(values - low, advantage).neg_().sign_().relu_()
    return under, torch.minimum(values - high, advantage).sign_().relu_()
