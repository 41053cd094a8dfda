"""The batches that advantages and losses are functions of. N rows (completions), M tokens of all rows end to end.

Left out: how batches are read from tables (gradus.tasks.stages.update.rows), how tokens go through a model
(gradus.models.training.logprobs).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ScoredBatch:
    """Judged completions.

    ScoredBatch(reward=[1, 0], group=[0, 0], correct=[1, 0], length=[9, 7])  # two answers to one problem
    """

    reward: Tensor
    """(N,) float64; NaN where judging failed."""
    group: Tensor
    """(N,) int64, 0 .. number of groups - 1."""
    correct: Tensor
    """(N,) float64: 1 right, 0 wrong, NaN unknown."""
    length: Tensor
    """(N,) int64 completion tokens."""

    def __post_init__(self) -> None:
        """Raise ValueError where a column has another shape or type than this class says."""
        shapes = {tuple(t.shape) for t in (self.reward, self.group, self.correct, self.length)}
        if len(shapes) != 1 or self.reward.ndim != 1:
            raise ValueError(f"the columns of a scored batch have shapes {sorted(shapes)}, expected one (N,)")
        if self.reward.dtype != torch.float64 or self.group.dtype != torch.int64:
            raise ValueError(f"reward is {self.reward.dtype} and group {self.group.dtype}, expected float64 and int64")

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
    """Completion tokens with everything that a policy loss reads; all (M,)."""

    logp: Tensor
    """The policy's log-prob of each token, nats, with gradient."""
    logp_old: Tensor
    """The trainer's log-prob when the update began, nats; the ratio's denominator."""
    logp_sampler: Tensor
    """The log-prob that the sampler recorded, nats."""
    entropy: Tensor
    """Entropy of the policy at the token, nats; with gradient where a bonus is asked for."""
    advantage: Tensor
    """Advantage of the token's completion."""
    mask: Tensor
    """bool: tokens that count."""
    row: Tensor
    """int64: which completion the token belongs to."""
    group: Tensor
    """int64: which group its completion belongs to."""
    logp_ref: Tensor | None = None
    """The reference policy's log-prob, nats."""

    def filled(self) -> "TokenBatch":
        """The batch with the policy's own log-prob wherever a given one is masked.

        A gap must not stay in the tensors: a masked NaN still makes the gradient NaN.
        """
        own = self.logp.detach()
        return replace(
            self,
            logp_old=torch.where(self.mask, self.logp_old, own),
            logp_sampler=torch.where(self.mask, self.logp_sampler, own),
            logp_ref=None if self.logp_ref is None else torch.where(self.mask, self.logp_ref, own),
        )


def all_finite(*logprobs: Tensor | None) -> Tensor:
    """Bool (M,): tokens of which every given log-prob is finite; those given as None are not asked for."""
    given = [value for value in logprobs if value is not None]
    return torch.stack([torch.isfinite(value) for value in given]).all(0)
