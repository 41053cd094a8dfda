"""Weights from how far the surprise of a token exceeds what the policy expects of it."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("weight", paper="arXiv 2508.03178", needs=("now.logp", "now.entropy"))
def surprising(
    rows: Rows, *, frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.2, coef: Annotated[float, Ge(0.0)] = 1.0
) -> tuple[Tensor, Metrics]:
    """Train the tokens of the highest s_t = -log pi_t - coef H_t alone: M / K for s_t >= tau, else 0 (Entropy-SFT).

    Light-IF (arXiv 2508.03178), its entropy-preserving fine-tuning by the authors' trainer: the mean over the chosen
    share of the tokens, those that the policy finds less likely than its entropy lets expect, so that what it is sure
    of stays as it is. tau is the (1 - frac) quantile over the M counted tokens of the step, K of them are chosen, and
    with the aggregation `token_mean` the loss is their mean. Deviation: of a step, where theirs is of a micro-batch.
    Metric: surprising_frac, the tokens chosen.

    Args:
        frac: Share of the tokens that is trained.
        coef: Weight of the entropy; 0 takes the least likely tokens.
    """
    excess = -rows["now.logp"].double() - coef * rows["now.entropy"].double()
    counted = excess[rows.mask]
    if not len(counted):
        return torch.zeros(len(excess)), {"surprising_frac": torch.zeros(len(excess))}
    kept = (excess >= torch.quantile(counted, 1 - frac)).float()
    return kept / kept[rows.mask].mean(), {"surprising_frac": kept}
