"""Losses: `(rows, *, settings) -> ((M,) loss of each token, metrics)`, in packs of whole rows. M tokens.

What couples more than a row belongs into an advantage or a weight, which are made from all rows of a step. Metrics are
(M,) too; the update reports their mean over the counted tokens of the step, or their maximum if the name ends in
`_max`. Here is what losses share; an aggregation (gradus.models.objectives.aggregations) makes one number of them.
Left out: sequence-level ratios, value losses.
"""

from torch import Tensor

Metrics = dict[str, Tensor]

MAX_LOG_RATIO = 10.0
"""|log ratio| beyond this is cut, and so passes no gradient. A ratio of e^10 = 22026 is no small step of one policy but
a broken row; without the cut one such token of negative advantage, which no clip bounds, would outweigh all others,
and exp() overflows float32 at 88."""


def k3_divergence(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: exp(d) - d - 1, d = logp_ref - logp; never negative.

    Schulman, Approximating KL Divergence (2020); used by GRPO, arXiv 2402.03300, eq. 4. Deviation: d is cut at
    MAX_LOG_RATIO, beyond which exp(d) alone would decide the step.
    """
    difference = (logp_ref - logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1
