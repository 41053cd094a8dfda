"""Policy losses by name, and the aggregations that turn token losses into one number. M tokens.

A loss is `(TokenBatch, **settings) -> ((M,) loss per token, metrics)`. Metrics are (M,) too; the update reports their
mean over the counted tokens of the step, or their maximum where the name ends in `_max`.
An aggregation is `(loss, mask, row, totals) -> scalar`, where the totals are those of the whole optimiser step: summed
over micro-batches the parts give the same number however the step is divided.
Left out: sequence-level ratios, value losses.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.models.objectives.batch import TokenBatch

Metrics = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Metrics]]

MAX_LOG_RATIO = 10.0
"""|log ratio| beyond this is cut, and so passes no gradient. A ratio of e^10 = 22026 is no small step of one policy but
a broken row; without the cut one such token of negative advantage, which no clip bounds, would outweigh all others,
and exp() overflows float32 at 88."""


def clip(batch: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Metrics]:
    """Clipped surrogate: L_t = -min(rho_t A_t, b_t A_t), rho_t = exp(logp - logp_old), b_t in [1 - low, 1 + high].

    PPO, arXiv 1707.06347, eq. 7; separate bounds as in DAPO, arXiv 2503.14476, section 3.1.
    Metrics: clip_frac_low (A < 0 and rho < 1 - low), clip_frac_high (A > 0 and rho > 1 + high), the tokens whose
    gradient the clip takes away; ratio_mean and ratio_max. Deviation: see MAX_LOG_RATIO.
    """
    ratio = (batch.logp - batch.logp_old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * batch.advantage, bounded * batch.advantage)
    given = ratio.detach()
    return loss, {
        "clip_frac_low": ((given < 1 - clip_low) & (batch.advantage < 0)).float(),
        "clip_frac_high": ((given > 1 + clip_high) & (batch.advantage > 0)).float(),
        "ratio_mean": given,
        "ratio_max": given,
    }


LOSSES: dict[str, Loss] = {"clip": clip}


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


@dataclass(frozen=True)
class Totals:
    """Counts over a whole optimiser step; only rows that carry a counted token are rows here."""

    num_tokens: int
    num_rows: int
    row_tokens: Tensor
    """(N,) counted tokens of each row."""
    length_tokens: int
    """The completion limit, for `fixed_length`."""

    @classmethod
    def of(cls, mask: Tensor, row: Tensor, num_rows: int, length_tokens: int) -> "Totals":
        """Count a step's tokens; `mask` and `row` are (M,), `num_rows` is N."""
        row_tokens = torch.zeros(num_rows, dtype=torch.long).index_add_(0, row, mask.long())
        return cls(int(mask.sum()), int((row_tokens > 0).sum()), row_tokens, length_tokens)


def token_mean(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:  # noqa: ARG001
    """Every token of the step weighs the same (DAPO, arXiv 2503.14476): sum / number of tokens."""
    return torch.where(mask, loss, 0.0).sum() / max(1, totals.num_tokens)


def sequence_mean(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:
    """Every completion weighs the same (GRPO, arXiv 2402.03300): mean over rows of the mean over their tokens."""
    weight = 1.0 / totals.row_tokens.clamp_min(1).to(loss.dtype)
    return torch.where(mask, loss * weight[row], 0.0).sum() / max(1, totals.num_rows)


def fixed_length(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:  # noqa: ARG001
    """Every token weighs 1 / (rows * limit), so that length earns nothing (Dr. GRPO, arXiv 2503.20783).

    The limit is a constant of the run; ValueError without one, since a limit read off the batch would bring back the
    dependence on length.
    """
    if totals.length_tokens < 1:
        raise ValueError("fixed_length needs the completion limit that the rollouts were sampled with")
    return torch.where(mask, loss, 0.0).sum() / max(1, totals.num_rows * totals.length_tokens)


Aggregation = Callable[[Tensor, Tensor, Tensor, Totals], Tensor]
AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "fixed_length": fixed_length,
}
