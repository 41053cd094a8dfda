"""The rows of one optimiser step: which of their tokens count, and their view before any gradient.

Shapes: N rows of the step, M completion tokens of them end to end, T those of the update.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradus.models.objectives.advantages import has_variance
from gradus.models.objectives.aggregations import Totals
from gradus.models.objectives.batch import ScoredBatch, all_finite
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.packed.packing import Pack
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.settings import UpdateSettings


class UpdateError(RuntimeError):
    """An update that must not be taken; the sentence says why."""


@dataclass(frozen=True)
class TeacherTokens:
    """A teacher's K most likely tokens at every place."""

    ids: Tensor
    """(T, K) int64."""
    logp: Tensor
    """(T, K) float32, nats, under its full softmax."""


@dataclass(frozen=True)
class ReferenceLogprobs:
    """What models other than the policy being trained say of the T tokens of an update."""

    old: Logprobs | None
    """The policy's own when the update began; None if the only step is on-policy."""
    reference: Tensor | None
    """(T,)."""
    reference_mean_logp: Tensor | None = None
    """(T,): means over the vocabulary."""
    teacher: TeacherTokens | None = None
    values: Tensor | None = None
    """(T,) float32: the critic's when the update began."""


@dataclass(frozen=True)
class StepRows:
    """Some rows of an update, and what is known of them before the step."""

    rollouts: Rollouts
    rows: Tensor
    """(N,) int64, ascending."""
    settings: UpdateSettings
    references: ReferenceLogprobs

    @cached_property
    def tokens(self) -> Tensor:
        """(M,) int64: places of the step's tokens among the T of the update; ascending, as the rows are."""
        return self.rollouts.completions.places(self.rows)

    @cached_property
    def row(self) -> Tensor:
        """(M,) int64: the row of each token, 0 .. N - 1."""
        return torch.repeat_interleave(torch.arange(len(self.rows)), self.rollouts.completions.lengths[self.rows])

    @cached_property
    def origin(self) -> Tensor:
        """(M,) int64: the loss of each token, as in `Rollouts.origin`."""
        found = self.rollouts.origin
        return torch.zeros_like(self.row) if found is None else found[self.rows][self.row]

    @cached_property
    def mask(self) -> Tensor:
        """(M,) bool: tokens that carry loss, whose log-probs are all finite, the sampler's where their loss needs it.

        The others are left out of loss and denominators.
        """
        old = None if self.references.old is None else self.references.old.logp
        given = (old, self.references.reference)
        known = [values[self.tokens] for values in given if values is not None]
        sampler = self.rollouts.logprobs[self.tokens]
        counted = torch.isfinite(sampler) | ~self._needs_sampler[self.origin]
        if known:
            counted = counted & all_finite(*known)
        return counted if self.rollouts.trained is None else counted & self.rollouts.trained[self.tokens]

    @property
    def _needs_sampler(self) -> Tensor:
        losses = self.settings.origin_losses
        return torch.tensor([self.settings.needs_sampler, *(each.needs_sampler for each in losses)])

    @cached_property
    def acts_without_advantage(self) -> Tensor:
        """(M,) bool: tokens whose loss has a gradient where the advantage is 0."""
        return acting_origins(self.settings)[self.origin]

    @cached_property
    def scored(self) -> ScoredBatch:
        """Rewards and groups of the rows, groups numbered from 0."""
        rollouts, rows = self.rollouts, self.rows
        group = torch.unique(rollouts.group[rows], return_inverse=True)[1]
        return ScoredBatch(rollouts.reward[rows], group, rollouts.correct[rows], rollouts.completions.lengths[rows])

    @cached_property
    def totals(self) -> Totals:
        """Counts of the step's tokens; UpdateError if none counts."""
        if not bool(self.mask.any()):
            raise UpdateError("a step has no token whose log-probs are all finite")
        counted = self.mask
        if not self.settings.count_zero_std_groups:
            counted = counted & (has_variance(self.scored)[self.scored.group][self.row] | self.acts_without_advantage)
        return Totals.of(counted, self.row, len(self.rows))

    def places(self, pack: Pack) -> Tensor:
        """(m,) int64: places of a pack's tokens among the M of the step."""
        return torch.searchsorted(self.tokens, self.rollouts.completions.places(pack.rows))


def acts_everywhere(settings: UpdateSettings) -> bool:
    """Return whether a term of the loss of every row has a gradient where the advantage is 0."""
    return bool(settings.kl_coef or settings.entropy_coef)


def acting_origins(settings: UpdateSettings) -> Tensor:
    """(1 + number of origin losses,) bool: by `Rollouts.origin`, whether a row acts without an advantage."""
    if acts_everywhere(settings):
        return torch.ones(1 + len(settings.origin_losses), dtype=torch.bool)
    return torch.tensor(
        [settings.acts_without_advantage, *(each.acts_without_advantage for each in settings.origin_losses)]
    )
