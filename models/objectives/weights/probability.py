"""Weights from the probability of each token under its sampler."""

from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("weight", paper="arXiv 2505.23564", needs=("sampler.logp",))
def improbable(rows: Rows, *, below: Annotated[float, Gt(0.0), Le(1.0)] = 0.9) -> tuple[Tensor, Metrics]:
    """Train the tokens alone whose probability under their sampler is below a threshold (SPO's probability mask).

    SPO (arXiv 2505.23564): the loss is a mean over the tokens kept. So a token kept weighs M / (tokens kept of the
    step), all others 0, which with the aggregation `token_mean` is that mean. Metric: improbable_frac, the tokens kept.

    Args:
        below: Probability from which a token is left out.
    """
    kept = (rows["sampler.logp"].exp() < below).float()
    share = kept[rows.mask].mean() if bool(rows.mask.any()) else torch.ones(())
    return kept / share.clamp_min(1 / max(len(kept), 1)), {"improbable_frac": kept}
