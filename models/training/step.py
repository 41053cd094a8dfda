"""One optimiser step: what its objective needs is measured, its coefficients are prepared, then the loss, pack by pack.

Measure: log-probs and entropies of all rows of the step without gradient, if a component needs them. Prepare: the
advantages that are made anew for every step, and token weights, from all rows (`StepView`). Loss: token losses of a
pack, times the weights, plus regularisers, aggregated with the totals of the step. So packs change nothing beyond
rounding, whatever a method couples.
Shapes: N rows of the step, M completion tokens of them end to end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gradus.models.objectives.advantages import has_variance
from gradus.models.objectives.aggregations import Totals
from gradus.models.objectives.batch import ScoredBatch, StepView, TokenBatch, all_finite
from gradus.models.objectives.losses import k3, regularised
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.packed.packing import Pack
from gradus.models.training.passes import pass_logprobs
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.schedule import learning_rate
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState

Metrics = dict[str, float]


class UpdateError(RuntimeError):
    """An update that must not be taken; the sentence says why."""


@dataclass(frozen=True)
class ReferenceLogprobs:
    """What the policy's log-probs are held against."""

    old: Logprobs | None
    """The policy's own of all T tokens when the update began; None if the only step is on-policy."""
    reference: Tensor | None
    """(T,)."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks during an update."""

    before: Callable[[Logprobs], None]
    """Called with the trainer's log-probs of the step's tokens before any weight changes; may raise then."""
    on_step: Callable[[int, Metrics], None]
    """A step was taken: its index and metrics."""
    on_rows: Callable[[int], None]
    """Called with the number of rows that went through a model."""


@dataclass(frozen=True)
class Prepared:
    """What the loss of a step is made with; all (M,)."""

    advantage: Tensor
    weight: Tensor | None
    """None weighs every token alike."""
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """One optimiser step over some rows of an update."""

    train_state: TrainState
    rollouts: Rollouts
    rows: Tensor
    """(N,) int64, ascending."""
    settings: UpdateSettings
    references: ReferenceLogprobs
    hooks: Hooks
    form: Form

    def take(self) -> Metrics:
        """Gradients of all packs, checks, one AdamW step; none if no row has a gradient."""
        prepared = self._prepared()
        self.train_state.optimizer.zero_grad(set_to_none=True)
        sums = {f"policy/{name}": _reduced(name, value, self._mask) for name, value in prepared.metrics.items()}
        own: list[Logprobs] = []
        packs = self._packs(prepared)
        for pack, zero_gradient in packs:
            with torch.set_grad_enabled(not zero_gradient):
                loss, metrics, found = self._pack_loss(pack, prepared)
            if not zero_gradient:
                loss.backward()
            own.append(found)
            _accumulate(sums, {"policy/loss": float(loss.detach()), **metrics})
            self.hooks.on_rows(len(pack.rows))
        norm = self._checked_norm(sums["policy/loss"])
        if self.references.old is None:
            self.hooks.before(Logprobs.joined(own))
        lr = self._advance(any(not zero_gradient for _, zero_gradient in packs))
        return {**_means(sums, int(self._mask.sum())), "policy/grad_norm": norm, "policy/lr": lr}

    def _checked_norm(self, loss: float) -> float:
        """The gradient's norm before it is scaled down to the limit."""
        masters, limit = self.train_state.masters, self.settings.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(masters.values(), limit))
        if not (np.isfinite(norm) and np.isfinite(loss)):
            raise UpdateError(f"step {self.train_state.step + 1} has loss {loss} and gradient norm {norm}")
        return norm

    def _advance(self, has_gradient: bool) -> float:
        """Take the optimiser's step, unless it would move by momentum alone; return the learning rate."""
        settings, optimizer = self.settings, self.train_state.optimizer
        lr = learning_rate(
            self.train_state.step, lr=settings.lr, warmup_steps=settings.warmup_steps, decay_steps=settings.decay_steps
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        if has_gradient:
            self.train_state.advance()
        optimizer.zero_grad(set_to_none=True)
        self.train_state.step += 1
        return lr

    @cached_property
    def _tokens(self) -> Tensor:
        """(M,) int64: places of the step's tokens among the T of the update; ascending, as the rows are."""
        return self.rollouts.completions.places(self.rows)

    @cached_property
    def _row(self) -> Tensor:
        """(M,) int64: the row of each token, 0 .. N - 1."""
        return torch.repeat_interleave(torch.arange(len(self.rows)), self.rollouts.completions.lengths[self.rows])

    @cached_property
    def _mask(self) -> Tensor:
        """(M,) bool: tokens whose log-probs are all finite; the others are left out of loss and denominators."""
        old = None if self.references.old is None else self.references.old.logp
        given = (self.rollouts.logprobs, old, self.references.reference)
        return all_finite(*(None if values is None else values[self._tokens] for values in given))

    @cached_property
    def _scored(self) -> ScoredBatch:
        rollouts, rows = self.rollouts, self.rows
        group = torch.unique(rollouts.group[rows], return_inverse=True)[1]
        return ScoredBatch(rollouts.reward[rows], group, rollouts.correct[rows], rollouts.completions.lengths[rows])

    @cached_property
    def _totals(self) -> Totals:
        """Counts of the step's tokens."""
        counted = self._mask
        if not self.settings.count_zero_std_groups:
            counted = counted & has_variance(self._scored)[self._scored.group][self._row]
        totals = Totals.of(counted, self._row, len(self.rows))
        if not bool(self._mask.any()):
            raise UpdateError("a step has no token whose log-probs are all finite")
        return totals

    def _prepared(self) -> Prepared:
        settings = self.settings
        advantage = self.rollouts.advantage[self.rows][self._row]
        if settings.step_advantage is None and not settings.weights:
            return Prepared(advantage, None, {})
        view = self._view(advantage)
        metrics: dict[str, Tensor] = {}
        if settings.step_advantage is not None:
            advantage = self._by_token(settings.step_advantage(view))
            metrics["advantage_abs"] = advantage.abs()
        weight = torch.ones(len(self._row), dtype=torch.float32)
        for weighing in settings.weights:
            factor, found = weighing(view)
            weight, metrics = weight * factor, {**metrics, **found}
        return Prepared(advantage, weight if settings.weights else None, metrics)

    def _by_token(self, advantage: Tensor) -> Tensor:
        """An advantage (N,) or (M,) as (M,). A step of N = M has one token a row, in the order of the rows."""
        if len(advantage) not in (len(self.rows), len(self._row)):
            raise UpdateError(f"the advantage has {len(advantage)} values for {len(self.rows)} rows")
        return advantage[self._row] if len(advantage) == len(self.rows) else advantage

    def _view(self, advantage: Tensor) -> StepView:
        """Measure what the components need."""
        old, reference, tokens = self.references.old, self.references.reference, self._tokens
        logp = entropy = None
        if self.settings.needs & {"logp", "entropy"}:
            logp, entropy = self._measured()
        return StepView(
            scored=self._scored,
            row=self._row,
            mask=self._mask,
            advantage=advantage,
            logp_sampler=self.rollouts.logprobs[tokens],
            logp_old=logp if old is None else old.logp[tokens],
            logp=logp,
            entropy=entropy,
            logp_ref=None if reference is None else reference[tokens],
        )

    def _measured(self) -> tuple[Tensor, Tensor]:
        """The policy's log-probs and entropies before the step, (M,) each."""
        logp, entropy = torch.empty(2, len(self._tokens))
        with torch.no_grad():
            for pack in self.rollouts.packs(self.rows, self.form, self.settings.micro_tokens):
                own = pass_logprobs(self.train_state.model, self.rollouts, pack, self.form)
                at = self._places(pack)
                logp[at], entropy[at] = own.logp, own.entropy
        return logp, entropy

    def _places(self, pack: Pack) -> Tensor:
        """(m,) int64: places of a pack's tokens among the M of the step."""
        return torch.searchsorted(self._tokens, self.rollouts.completions.places(pack.rows))

    def _packs(self, prepared: Prepared) -> list[tuple[Pack, bool]]:
        """Packs of the rows, and whether they have zero gradient: those need none, only their metrics."""
        acts = prepared.advantage != 0 if prepared.weight is None else (prepared.advantage * prepared.weight) != 0
        zero = torch.ones(len(self.rows), dtype=torch.bool)
        zero[self._row[acts | acts_everywhere(self.settings)]] = False
        return [
            (pack, zero_gradient)
            for zero_gradient in (False, True)
            for pack in self.rollouts.packs(self.rows[zero == zero_gradient], self.form, self.settings.micro_tokens)
        ]

    def _pack_loss(self, pack: Pack, prepared: Prepared) -> tuple[Tensor, Metrics, Logprobs]:
        """Loss of a pack, metrics summed over its tokens, and the policy's log-probs."""
        settings, old, at = self.settings, self.references.old, self._places(pack)
        own = pass_logprobs(
            self.train_state.model, self.rollouts, pack, self.form, entropy_grad=settings.entropy_coef != 0
        )
        tokens, logp = self._tokens[at], own.logp
        batch = TokenBatch(
            logp=logp,
            logp_old=logp.detach() if old is None else old.logp[tokens],
            logp_sampler=self.rollouts.logprobs[tokens],
            entropy=own.entropy,
            advantage=prepared.advantage[at].to(logp.dtype),
            mask=self._mask[at],
            row=self._row[at],
            group=self._scored.group[self._row[at]],
            logp_ref=None if self.references.reference is None else self.references.reference[tokens],
        ).filled()
        loss, found = settings.loss(batch)
        if settings.correction is not None:
            began = own.truncated_logp if old is None else old.truncated_logp[tokens]
            weight, weighed = settings.correction(began, batch.logp_sampler, batch.row, batch.mask)
            loss, found = weight * loss, {**found, **weighed}
        if prepared.weight is not None:
            loss = prepared.weight[at] * loss
        loss = regularised(loss, batch, kl_coef=settings.kl_coef, entropy_coef=settings.entropy_coef)
        found = {**found, "entropy": own.entropy.detach(), "kl_old": k3(batch.logp_old, logp.detach())}
        if batch.logp_ref is not None:
            found["kl_ref"] = k3(logp.detach(), batch.logp_ref)
        metrics = {f"policy/{name}": _reduced(name, value, batch.mask) for name, value in found.items()}
        total = settings.aggregation(loss, batch.mask, batch.row, self._totals)
        return total, metrics, Logprobs(tokens, logp.detach(), own.truncated_logp)


def acts_everywhere(settings: UpdateSettings) -> bool:
    """Return whether a term of the loss has a gradient where the advantage is 0."""
    return bool(settings.kl_coef or settings.entropy_coef or settings.acts_without_advantage)


def _reduced(name: str, value: Tensor, mask: Tensor) -> float:
    counted = value[mask].double()
    if name.endswith("_max"):
        return float(counted.max()) if counted.numel() else 0.0
    return float(counted.sum())


def _accumulate(sums: dict[str, float], metrics: Metrics) -> None:
    for name, value in metrics.items():
        before = sums.get(name, 0.0)
        sums[name] = max(before, value) if name.endswith("_max") else before + value


def _means(sums: dict[str, float], num_tokens: int) -> Metrics:
    """Sums over tokens as means; the loss, already aggregated, and maxima as they are."""
    whole = {name: value for name, value in sums.items() if name == "policy/loss" or name.endswith("_max")}
    return {name: whole.get(name, value / num_tokens) for name, value in sums.items()}
