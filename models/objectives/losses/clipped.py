"""The clipped surrogate on token ratios (PPO)."""

from typing import Annotated

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
    advantage = rows["advantage"]
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantage, bounded * advantage)
    given = ratio.detach()
    return loss, {
        "clip_frac_low": ((given < 1 - clip_low) & (advantage < 0)).float(),
        "clip_frac_high": ((given > 1 + clip_high) & (advantage > 0)).float(),
        "ratio_mean": given,
        "ratio_max": given,
    }
