"""The batches that advantages and losses are functions of. N rows (completions), M tokens of all rows end to end."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ScoredBatch:
    """Judged completions.

    ScoredBatch(reward=[1, 0], group=[0, 0])  # two answers to one problem, the first right
    """

    reward: Tensor
    """(N,) float64; NaN where judging failed."""
    group: Tensor
    """(N,) int64, 0 .. number of groups - 1."""

    @property
    def judged(self) -> Tensor:
        """(N,) bool: rows with a reward."""
        return ~torch.isnan(self.reward)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return int(self.group.max()) + 1 if self.group.numel() else 0


@dataclass(frozen=True)
class TokenBatch:
    """Completion tokens with everything a policy loss reads; all (M,) unless said otherwise."""

    logp: Tensor
    """The policy's log-prob of each token, nats, with gradient."""
    logp_old: Tensor
    """Log-prob when the update began; the ratio's denominator."""
    advantage: Tensor
    """Each token's advantage."""
    mask: Tensor
    """bool: tokens that count."""
    row: Tensor
    """int64: which completion the token belongs to."""
    entropy: Tensor | None = None
    """Entropy of the policy at the token, nats, with gradient where a bonus is asked for."""
    logp_ref: Tensor | None = None
    """The reference policy's log-prob."""

    def finite(self) -> "TokenBatch":
        """The batch with tokens masked whose old or reference log-prob is not finite: they must not look on-policy."""
        usable = torch.isfinite(self.logp_old)
        if self.logp_ref is not None:
            usable &= torch.isfinite(self.logp_ref)
        old = torch.where(usable, self.logp_old, self.logp.detach())
        ref = None if self.logp_ref is None else torch.where(usable, self.logp_ref, self.logp.detach())
        return replace(self, mask=self.mask & usable, logp_old=old, logp_ref=ref)
