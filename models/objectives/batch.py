"""The batches that advantages and losses are functions of. N rows (completions), M tokens of all rows end to end.

Left out: how batches are read from tables (gradus.tasks.stages.update.rows), how tokens go through a model
(gradus.models.training.packed.logprobs).
"""

from dataclasses import dataclass, replace
from typing import Any

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
        """Raise ValueError if a column has another shape or type than documented."""
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
class StepView:
    """All rows of one optimiser step before any gradient: what advantages and token weights of a step are made from.

    N rows in G groups, M completion tokens end to end. Two answers of two and one tokens to one problem:

        step.row      [0, 0, 1]
        step.scored   ScoredBatch(reward=[1, 0], group=[0, 0], correct=[1, 0], length=[2, 1])
        step.row_mean(step.logp_sampler)   # (N,): mean log-prob of each answer

    What costs a forward pass is there only if a component asks for it by `needs`; `needed` names what it asks for.
    """

    scored: ScoredBatch
    """N rows; NaN rewards do not occur. Groups are numbered 0 .. G - 1."""
    row: Tensor
    """(M,) int64: the row of each token, 0 .. N - 1."""
    mask: Tensor
    """(M,) bool: tokens that count."""
    advantage: Tensor
    """(M,) of the token's row; 0 where the advantage is made from this view."""
    logp_sampler: Tensor
    """(M,) nats, as the sampler recorded it."""
    logp_old: Tensor | None = None
    """(M,) nats: the trainer's when the update began; `logp` itself in an update of one step. Needed: logp."""
    logp: Tensor | None = None
    """(M,) nats: the policy's now, before this step. Needed: logp."""
    entropy: Tensor | None = None
    """(M,) nats: the policy's now. Needed: entropy."""
    logp_ref: Tensor | None = None
    """(M,) nats: the reference policy's. Needed: reference."""
    values: Tensor | None = None
    """(M,): the critic's estimate of the reward to come, before the token, when the update began. Needed: values."""

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.scored.reward)

    def row_mean(self, values: Tensor) -> Tensor:
        """Mean of values (M,) over each row's counted tokens, (N,); 0 for a row without any."""
        sums = values.new_zeros(self.num_rows).index_add_(0, self.row, torch.where(self.mask, values, 0.0))
        counts = values.new_zeros(self.num_rows).index_add_(0, self.row, self.mask.to(values.dtype))
        return sums / counts.clamp_min(1)


@dataclass(frozen=True)
class TopTokens:
    """A teacher's K most likely tokens at each of M places, under the teacher and under the policy."""

    logp_teacher: Tensor
    """(M, K) nats, under the teacher's full softmax."""
    logp: Tensor
    """(M, K) nats: the policy's log-probs of the same tokens, with gradient."""


@dataclass(frozen=True)
class TokenBatch:
    """Completion tokens of a micro-batch with everything that a policy loss reads; all (M,) unless said otherwise.

    A micro-batch holds whole rows, so that a loss may sum over `row`; what couples more than a row belongs into an
    advantage or a token weight (`StepView`). Two answers of two and one tokens, one right, on-policy:

        batch.row                               [0, 0, 1]
        batch.advantage                         [1, 1, -1]
        (batch.logp - batch.logp_old).exp()     [1, 1, 1]     the ratio, with gradient

    What has to be asked for by `needs` is None unless a part of the objective does.
    """

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
    """int64: the completion of the token, 0 .. completions of the step - 1."""
    group: Tensor
    """int64: the group of its completion, 0 .. groups of the step - 1."""
    logp_ref: Tensor | None = None
    """The reference policy's log-prob, nats. Needed: reference."""
    mean_logp: Tensor | None = None
    """Mean over the vocabulary of the policy's log-probs, with gradient. Needed: mean_logp."""
    mean_logp_ref: Tensor | None = None
    """The same of the reference policy. Needed: reference_mean_logp."""
    logsumexp: Tensor | None = None
    """logsumexp of the policy's logits at the row's temperature, with gradient. Needed: logsumexp."""
    logp_at_1: Tensor | None = None
    """The policy's log-prob at temperature 1, with gradient. Needed: logp_at_1."""
    teacher: TopTokens | None = None
    """Needed: teacher."""

    def filled(self) -> "TokenBatch":
        """The batch with the policy's own log-prob wherever a given one is masked or was never recorded.

        A gap must not stay in the tensors: a masked NaN still makes the gradient NaN.
        """
        own = self.logp.detach()
        return replace(
            self,
            logp_old=torch.where(self.mask, self.logp_old, own),
            logp_sampler=torch.where(self.mask & torch.isfinite(self.logp_sampler), self.logp_sampler, own),
            logp_ref=None if self.logp_ref is None else torch.where(self.mask, self.logp_ref, own),
        )

    def select(self, chosen: Tensor) -> "TokenBatch":
        """Return the batch with the chosen tokens alone; `chosen` is (M,) bool, and leaves no row in parts."""
        found = {name: _chosen(getattr(self, name), chosen) for name in self.__dataclass_fields__}
        return TokenBatch(**found)


def _chosen(value: Tensor | TopTokens | None, chosen: Tensor) -> Any:
    if isinstance(value, TopTokens):
        return TopTokens(value.logp_teacher[chosen], value.logp[chosen])
    return None if value is None else value[chosen]


def all_finite(*logprobs: Tensor | None) -> Tensor:
    """Bool (M,): tokens of which every given log-prob is finite; those given as None are not asked for."""
    given = [value for value in logprobs if value is not None]
    return torch.stack([torch.isfinite(value) for value in given]).all(0)
