"""Weights from the advantage of each token."""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("weight", paper="arXiv 2509.24203", needs=("advantage",))
def exp_advantage(rows: Rows, *, temperature: Annotated[float, Gt(0.0)] = 1.0) -> tuple[Tensor, Metrics]:
    """Weigh each token by exp(A_t / temperature), so that what went well counts more (RED-Weight).

    RED-Weight, arXiv 2509.24203, as in its code, not normalised. Metric: exp_advantage_mean.

    Args:
        temperature: Advantage that multiplies the weight by e.
    """
    weight = (rows["advantage"].double() / temperature).exp()
    return weight.float(), {"exp_advantage_mean": weight}


@component("weight", paper="arXiv 2505.02835", needs=("advantage",))
def without_outliers(rows: Rows, *, sigmas: Annotated[float, Gt(0.0)] = 3.0) -> tuple[Tensor, Metrics]:
    """Weigh tokens 0 whose advantage is an outlier: |A_t - mean| > sigmas std, over the counted tokens of the step.

    StableReinforce's advantage filter, arXiv 2505.02835 (3 sigma); the std has ddof 0. All others weigh 1. Deviation:
    advantages are not replaced by their standardised values, as the authors' code does.
    Metric: outlier_frac, the tokens left out.

    Args:
        sigmas: Standard deviations from which an advantage is an outlier.
    """
    advantage = rows["advantage"].double()
    counted = advantage[rows.mask]
    mean, std = (counted.mean(), counted.std(correction=0)) if len(counted) else (advantage.sum(), advantage.sum())
    kept = ((advantage - mean).abs() <= sigmas * std).float()
    return kept, {"outlier_frac": 1 - kept}
