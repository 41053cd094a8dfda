"""The clipped surrogate of ratios that are bounded before: dual clip, MM-Eureka's cap, StableReinforce's pre-clip."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 1912.09729", needs=("now.logp", "old.logp", "advantage"))
def dual_clip(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.28,
    floor: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0,
    cap: Annotated[float, Gt(1.0)] = 3.0,
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate (see `clip`) of a bounded ratio: r_t = clamp(rho_t, floor, cap) in the place of rho_t.

    Dual-clip PPO, arXiv 1912.09729: with A < 0 the surrogate is at least cap A, so that a token whose ratio exploded
    has no gradient; max(min(rho A, clip(rho) A), cap A) is the same as bounding rho. So are the cap of MM-Eureka (arXiv
    2503.07365: cap = 3) and the Pre-CLIP of StableReinforce (arXiv 2505.02835: floor = 1e-3, cap = 1e3), both by their
    released losses. Metrics of `clip`, and bounded_frac: tokens that lose their gradient to floor or cap.
    Deviation: see MAX_LOG_RATIO.

    Args:
        clip_low: Ratio floor of the clip is 1 - clip_low.
        clip_high: Ratio ceiling of the clip is 1 + clip_high, which should be less than `cap`.
        floor: Least ratio, beyond which a token of A > 0 has no gradient.
        cap: Largest ratio, beyond which a token of A < 0 has no gradient.
    """
    advantage = rows["advantage"]
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss, metrics = surrogate(ratio.clamp(floor, cap), advantage, clip_low, clip_high)
    given = ratio.detach()
    bounded = ((given > cap) & (advantage < 0)) | ((given < floor) & (advantage > 0))
    return loss, {**metrics, "ratio_mean": given, "ratio_max": given, "bounded_frac": bounded.float()}


def surrogate(
    ratio: Tensor, advantage: Tensor, clip_low: float | Tensor, clip_high: float | Tensor
) -> tuple[Tensor, Metrics]:
    """Return -min(ratio A, clamp(ratio, 1 - low, 1 + high) A) and the metrics of `clip`; all are (M,) or numbers."""
    low = 1 - torch.as_tensor(clip_low, dtype=ratio.dtype)
    high = 1 + torch.as_tensor(clip_high, dtype=ratio.dtype)
    given = ratio.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage), {
        "clip_frac_low": ((given < low) & (advantage < 0)).float(),
        "clip_frac_high": ((given > high) & (advantage > 0)).float(),
        "ratio_mean": given,
        "ratio_max": given,
    }
