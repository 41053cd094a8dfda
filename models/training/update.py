"""The policy update: judged rollouts in, optimiser steps out. Deterministic for a batch, a train state and settings.

One pass: rows -> minibatches of whole groups -> micro-batches -> AdamW. The loss of a step is normalised by that
step's own counts, so micro-batching changes nothing beyond rounding. Dropout stays off: the log-probs of the update
must be those of the policy that sampled.
The ratio's denominator: with one optimiser step the policy's own log-probs (ratio 1, exactly on-policy); with several,
those of the policy before the first one, recomputed by the trainer, so that sampler and trainer numerics do not mix.
Truncated sampling (top-k, top-p): what is held against the sampler's log-probs, the correction's weight and `mismatch`,
is the trainer's log-prob as drawn; the loss and its ratio are of the full softmax on both sides, as in the systems that
truncate nothing. Deviation: DeepSeek-V3.2 (arXiv 2512.02556, Keep Sampling Mask) truncates the loss's ratio too, by the
sampler's own sets of tokens, and so learns the truncated policy p / S: its gradient has -A grad log S more. Rollouts do
not record those sets; by the train state's own, a token that it has pushed out could never come back.
Left out: several devices, adapters, mixed precision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.objectives.aggregations import Totals
from gradus.models.objectives.batch import TokenBatch, all_finite
from gradus.models.objectives.losses import MAX_LOG_RATIO, k3, regularised
from gradus.models.training.logprobs import token_logprobs
from gradus.models.training.packing import micro_batches
from gradus.models.training.schedule import learning_rate
from gradus.models.training.state import Rollouts, TrainState, UpdateSettings

Metrics = dict[str, float]
RowValues = dict[int, Tensor]
"""Row number -> (length,) values of its completion tokens."""


class UpdateError(RuntimeError):
    """An update that must not be taken; the sentence says why."""


@dataclass(frozen=True)
class RowLogprobs:
    """A policy's log-probs of completion tokens, by row."""

    logp: RowValues
    """Under the full softmax."""
    truncated_logp: RowValues
    """After the row's top-k and top-p; see gradus.models.training.logprobs."""


@dataclass(frozen=True)
class StepPlan:
    """The optimiser steps of one update: the rows of each, decided before the first."""

    steps: tuple[tuple[int, ...], ...]

    @property
    def on_policy(self) -> bool:
        """Whether the only step is taken by the policy that sampled."""
        return len(self.steps) == 1

    @classmethod
    def of(cls, rollouts: Rollouts, settings: UpdateSettings, rng: np.random.Generator) -> "StepPlan":
        """Whole groups, shuffled anew for each epoch, `minibatch_groups` to a step (0: all in one).

        A step that nothing could be learnt from is left out: AdamW would move by momentum alone.
        """
        group = rollouts.group.numpy()
        learnable = ~zero_gradient_rows(rollouts, settings)
        groups = np.unique(group)
        size = settings.minibatch_groups or len(groups)
        steps: list[tuple[int, ...]] = []
        for _ in range(settings.epochs):
            order = rng.permutation(groups)
            for start in range(0, len(order), size):
                chosen = np.isin(group, order[start : start + size])
                if learnable[chosen].any():
                    steps.append(tuple(int(i) for i in np.flatnonzero(chosen)))
        return cls(tuple(steps))


@dataclass(frozen=True)
class Hooks:
    """Callbacks during an update."""

    before: Callable[[RowValues], None]
    """Called with the trainer's log-probs of the step's tokens, as drawn, before any weight changes; may raise then."""
    on_step: Callable[[int, Metrics], None]
    """A step was taken: its index and metrics."""
    on_rows: Callable[[int], None]
    """Called with the number of rows that went through a model."""


@dataclass(frozen=True)
class ReferenceLogprobs:
    """What the policy's log-probs are held against."""

    old: RowLogprobs | None
    """The policy's own when the update began; None if the only step is on-policy."""
    reference: RowValues | None


def row_logprobs(
    model: PreTrainedModel, rollouts: Rollouts, micro_tokens: int, on_rows: Callable[[int], None]
) -> RowLogprobs:
    """The model's log-prob of every completion token, by row."""
    found = RowLogprobs({}, {})
    with torch.no_grad():
        for rows in micro_batches(rollouts.lengths, micro_tokens):
            own = token_logprobs(
                model, rollouts.sequences(rows), rollouts.temperature[rows], drawn=rollouts.drawing(rows)
            )
            found.logp.update(_by_row(own.logp, rollouts, rows))
            found.truncated_logp.update(_by_row(own.truncated_logp, rollouts, rows))
            on_rows(len(rows))
    return found


def optimise(
    train_state: TrainState,
    rollouts: Rollouts,
    plan: StepPlan,
    settings: UpdateSettings,
    references: ReferenceLogprobs,
    hooks: Hooks,
    first: int = 0,
) -> None:
    """Take the steps of a plan from index `first` on; raise UpdateError if a step's loss or gradient is not finite.

    With an on-policy plan `hooks.before` is called here, between the gradient and the step; otherwise the caller has
    the old log-probs and looks at them first.
    """
    for index in range(first, len(plan.steps)):
        step = _Step(train_state, rollouts, plan.steps[index], settings, references, hooks)
        hooks.on_step(index, step.take())


@dataclass(frozen=True)
class _Step:
    train_state: TrainState
    rollouts: Rollouts
    rows: Sequence[int]
    settings: UpdateSettings
    references: ReferenceLogprobs
    hooks: Hooks

    def take(self) -> Metrics:
        """Gradients of all micro-batches, checks, one AdamW step."""
        model, optimizer = self.train_state.model, self.train_state.optimizer
        totals = self._totals()
        optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        own: dict[int, Tensor] = {}
        for rows, zero_gradient in self._micro_batches():
            with torch.set_grad_enabled(not zero_gradient):
                loss, metrics, truncated_logp = self._micro_loss(rows, totals)
            if not zero_gradient:
                loss.backward()
            own.update(_by_row(truncated_logp, self.rollouts, rows))
            _accumulate(sums, {"policy/loss": float(loss.detach()), **metrics})
            self.hooks.on_rows(len(rows))
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm))
        if not (np.isfinite(norm) and np.isfinite(sums["policy/loss"])):
            step, loss = self.train_state.step + 1, sums["policy/loss"]
            raise UpdateError(f"step {step} has loss {loss} and gradient norm {norm}")
        if self.references.old is None:
            self.hooks.before(own)
        settings = self.settings
        lr = learning_rate(
            self.train_state.step, lr=settings.lr, warmup_steps=settings.warmup_steps, decay_steps=settings.decay_steps
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.train_state.step += 1
        return {**_means(sums, totals.num_tokens), "policy/grad_norm": norm, "policy/lr": lr}

    def _micro_batches(self) -> list[tuple[list[int], bool]]:
        """Rows in micro-batches, and whether they have zero gradient: those need none, only their metrics."""
        quiet = zero_gradient_rows(self.rollouts, self.settings)
        found: list[tuple[list[int], bool]] = []
        for zero_gradient in (False, True):
            rows = [i for i in self.rows if bool(quiet[i]) is zero_gradient]
            lengths = [self.rollouts.lengths[i] for i in rows]
            micros = micro_batches(lengths, self.settings.micro_tokens)
            found.extend(([rows[i] for i in micro], zero_gradient) for micro in micros)
        return found

    @property
    def _old(self) -> RowValues | None:
        return None if self.references.old is None else self.references.old.logp

    def _counted(self, rows: Sequence[int]) -> Tensor:
        """Bool (M,): tokens whose log-probs are all finite; the others are left out of loss and denominators."""
        given = (self._old, self.references.reference)
        return all_finite(self.rollouts.sampler(rows), *(_gather(values, rows) for values in given))

    def _totals(self) -> Totals:
        """Counts of the step's tokens."""
        mask = self._counted(self.rows)
        row = self.rollouts.token_rows(self.rows)
        totals = Totals.of(mask, row, self.rollouts.num_rows)
        if totals.num_tokens == 0:
            raise UpdateError("a step has no token whose log-probs are all finite")
        return totals

    def _micro_loss(self, rows: Sequence[int], totals: Totals) -> tuple[Tensor, Metrics, Tensor]:
        settings = self.settings
        logp, entropy, truncated_logp = token_logprobs(
            self.train_state.model,
            self.rollouts.sequences(rows),
            self.rollouts.temperature[list(rows)],
            entropy_grad=settings.entropy_coef != 0,
            drawn=self.rollouts.drawing(rows),
        )
        row = self.rollouts.token_rows(rows)
        old = _gather(self._old, rows)
        batch = TokenBatch(
            logp=logp,
            logp_old=logp.detach() if old is None else old,
            logp_sampler=self.rollouts.sampler(rows),
            entropy=entropy,
            advantage=self.rollouts.advantage[row].to(logp.dtype),
            mask=self._counted(rows),
            row=row,
            group=self.rollouts.group[row],
            logp_ref=_gather(self.references.reference, rows),
        ).filled()
        loss, found = settings.loss(batch)
        if settings.correction is not None:
            began = (
                truncated_logp
                if self.references.old is None
                else torch.cat([self.references.old.truncated_logp[i] for i in rows])
            )
            weight, weighed = settings.correction(began, batch.logp_sampler, batch.row, batch.mask)
            loss, found = weight * loss, {**found, **weighed}
        loss = regularised(loss, batch, kl_coef=settings.kl_coef, entropy_coef=settings.entropy_coef)
        found = {**found, "entropy": entropy.detach()}
        if batch.logp_ref is not None:
            found["kl_ref"] = k3(logp.detach(), batch.logp_ref)
        metrics = {f"policy/{name}": _reduced(name, value, batch.mask) for name, value in found.items()}
        return settings.aggregation(loss, batch.mask, batch.row, totals), metrics, truncated_logp


def zero_gradient_rows(rollouts: Rollouts, settings: UpdateSettings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Bool (N,): rows whose gradient is exactly zero, since their advantage is and no other term of the loss acts."""
    if settings.kl_coef or settings.entropy_coef:
        return np.zeros(rollouts.num_rows, dtype=np.bool_)
    return (rollouts.advantage == 0).numpy()


def mismatch(rollouts: Rollouts, trainer: RowValues) -> Metrics:
    """How sampler and trainer differ on the same tokens; ratio = exp(trainer - sampler), differences in nats.

    `trainer` holds log-probs as drawn. kl estimates KL(sampler || trainer) by k3. Tokens whose log-probs are not both
    finite count in masked_frac alone; if no others are left, it is the only metric. Those among them that the
    trainer's own truncation excludes are outside_frac, reported if rows are truncated.
    """
    sampler, found = rollouts.sampler(list(trainer)), torch.cat(list(trainer.values()))
    finite = all_finite(sampler, found)
    masked = {"mismatch/masked_frac": float((~finite).double().mean())}
    if rollouts.drawn is not None:
        masked["mismatch/outside_frac"] = sum(num_outside(rollouts, trainer).values()) / max(1, len(found))
    difference = (found - sampler)[finite].double()
    if difference.numel() == 0:
        return masked
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return {
        "mismatch/kl": float(k3(sampler[finite].double(), found[finite].double()).mean()),
        "mismatch/ratio_mean": float(ratio.mean()),
        "mismatch/ratio_max": float(ratio.max()),
        "mismatch/logp_diff_mean": float(difference.abs().mean()),
        "mismatch/logp_diff_max": float(difference.abs().max()),
        **masked,
    }


def num_outside(rollouts: Rollouts, trainer: RowValues) -> dict[int, int]:
    """By row: tokens that the sampler could draw and the trainer, truncated likewise, could not."""
    return {
        row: int((torch.isneginf(values) & torch.isfinite(rollouts.logprobs[row])).sum())
        for row, values in trainer.items()
    }


def worst_row(rollouts: Rollouts, trainer: RowValues) -> int:
    """The row whose tokens' log-probs differ most between sampler and trainer, by their mean over finite ones."""

    def off(row: int) -> float:
        difference = (trainer[row] - rollouts.logprobs[row]).abs()
        finite = difference[torch.isfinite(difference)]
        return float(finite.mean()) if len(finite) else 0.0

    return max(trainer, key=off)


def _by_row(values: Tensor, rollouts: Rollouts, rows: Sequence[int]) -> dict[int, Tensor]:
    sizes = [len(rollouts.completions[i]) for i in rows]
    return dict(zip(rows, values.detach().split(sizes), strict=True))


def _gather(values: RowValues | None, rows: Sequence[int]) -> Tensor | None:
    return None if values is None else torch.cat([values[i] for i in rows])


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
