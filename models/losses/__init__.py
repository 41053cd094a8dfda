"""Policy losses by name, and the aggregations that turn token losses into one number.

A loss is `(TokenBatch, **settings) -> ((M,) loss per token, metrics)`. An aggregation is `(loss, mask, row, totals)`
-> scalar, where the totals are those of the whole optimiser step: summed over micro-batches, the parts give the same
number however the step is divided. M tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.batch import TokenBatch

Metrics = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Metrics]]

MAX_LOG_RATIO = 10.0
"""|log ratio| beyond this is cut: exp() of more overflows half-precision gradients and means the row is lost anyway."""


def clip(batch: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Metrics]:
    """The clipped surrogate.

    L_t = -min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t), rho_t = exp(logp - logp_old).

    PPO, arXiv 1707.06347, eq. 7; separate bounds as in DAPO, arXiv 2503.14476, eq. 8.
    Metrics are sums over counted tokens: clipped from below (A < 0, rho < 1 - low) and above (A > 0, rho > 1 + high).
    """
    log_ratio = (batch.logp - batch.logp_old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * batch.advantage, bounded * batch.advantage)
    low = (ratio < 1 - clip_low) & (batch.advantage < 0) & batch.mask
    high = (ratio > 1 + clip_high) & (batch.advantage > 0) & batch.mask
    return loss, {"clip_frac_low": low.sum(), "clip_frac_high": high.sum()}


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: exp(d) - d - 1, d = logp_ref - logp; never negative.

    Schulman, Approximating KL Divergence (2020); used by GRPO, arXiv 2402.03300, eq. 4.
    """
    difference = (logp_ref - logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1


LOSSES: dict[str, Loss] = {"clip": clip}


@dataclass(frozen=True)
class Totals:
    """Counts over a whole optimiser step, of rows that carry any counted token."""

    num_tokens: int
    num_rows: int
    row_tokens: Tensor
    """(N,) counted tokens of each row."""
    max_tokens: int
    """The completion limit, for `fixed_length`."""

    @classmethod
    def of(cls, mask: Tensor, row: Tensor, num_rows: int, max_tokens: int) -> "Totals":
        """Count a step's tokens; `mask` and `row` are (M,)."""
        row_tokens = torch.zeros(num_rows, dtype=torch.long).index_add_(0, row, mask.long())
        return cls(int(mask.sum()), int((row_tokens > 0).sum()), row_tokens, max_tokens)


def token_mean(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:  # noqa: ARG001
    """Every token of the step weighs the same (DAPO, arXiv 2503.14476): sum / number of tokens."""
    return torch.where(mask, loss, 0.0).sum() / max(1, totals.num_tokens)


def sequence_mean(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:
    """Every completion weighs the same (GRPO, arXiv 2402.03300): mean over rows of the mean over their tokens."""
    weight = 1.0 / totals.row_tokens.clamp_min(1).to(loss.dtype)
    return torch.where(mask, loss * weight[row], 0.0).sum() / max(1, totals.num_rows)


def fixed_length(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:  # noqa: ARG001
    """Every token weighs 1 / (rows * limit), so that length earns nothing (Dr. GRPO, arXiv 2503.20783)."""
    return torch.where(mask, loss, 0.0).sum() / max(1, totals.num_rows * totals.max_tokens)


Aggregation = Callable[[Tensor, Tensor, Tensor, Totals], Tensor]
AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "fixed_length": fixed_length,
}
