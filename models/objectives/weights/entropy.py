"""Weights from the entropy of the policy at each token."""

from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("weight", paper="arXiv 2506.01939", needs=("now.entropy",))
def top_entropy(rows: Rows, *, frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.2) -> tuple[Tensor, Metrics]:
    """Weigh the tokens of highest entropy 1 and all others 0: 1[H_t >= tau], tau the (1 - frac) quantile of H.

    Beyond the 80/20 Rule, arXiv 2506.01939, eq. 6. The quantile (linear interpolation) is that of all counted tokens of
    the step, where the paper takes that of a micro-batch. Metrics: top_entropy_frac, the tokens kept;
    top_entropy_threshold_max, the threshold in nats.

    Args:
        frac: Share of the tokens that is kept.
    """
    entropy = rows["now.entropy"].double()
    threshold = torch.quantile(entropy[rows.mask], 1 - frac)
    kept = (entropy >= threshold).float()
    return kept, {"top_entropy_frac": kept, "top_entropy_threshold_max": torch.full_like(kept, float(threshold))}
