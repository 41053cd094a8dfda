"""Policy losses: `(TokenBatch, *, settings) -> ((M,) loss per token, metrics)`. M tokens.

Metrics are (M,) too; the update reports their mean over the counted tokens of the step, or their maximum if the name
ends in `_max`. Here is what losses share; gradus.models.objectives.aggregations makes a number of the token losses.
Left out: sequence-level ratios, value losses.
"""

from collections.abc import Callable

from torch import Tensor

from gradus.models.objectives.batch import TokenBatch

Metrics = dict[str, Tensor]
Loss = Callable[[TokenBatch], tuple[Tensor, Metrics]]

MAX_LOG_RATIO = 10.0
"""|log ratio| beyond this is cut, and so passes no gradient. A ratio of e^10 = 22026 is no small step of one policy but
a broken row; without the cut one such token of negative advantage, which no clip bounds, would outweigh all others,
and exp() overflows float32 at 88."""


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: exp(d) - d - 1, d = logp_ref - logp; never negative.

    Schulman, Approximating KL Divergence (2020); used by GRPO, arXiv 2402.03300, eq. 4. Deviation: d is cut at
    MAX_LOG_RATIO, beyond which exp(d) alone would decide the step.
    """
    difference = (logp_ref - logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1


def regularised(loss: Tensor, batch: TokenBatch, *, kl_coef: float, entropy_coef: float) -> Tensor:
    """The token loss plus kl_coef times k3 to the reference (where there is one) less entropy_coef times entropy."""
    if batch.logp_ref is not None:
        loss = loss + kl_coef * k3(batch.logp, batch.logp_ref)
    return loss - entropy_coef * batch.entropy if entropy_coef else loss
