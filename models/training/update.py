"""The policy update: judged rollouts in, optimiser steps out. Deterministic for a batch, a train state and settings.

One pass: rows -> minibatches of whole groups -> steps. Dropout stays off: the log-probs of the update must be those of
the policy that sampled. The ratio's denominator: with one optimiser step the policy's own log-probs (ratio 1, exactly
on-policy); with several, those of the policy before the first one, recomputed by the trainer, so that sampler and
trainer numerics do not mix.

A step measures, prepares, then computes its loss pack by pack. Measure: log-probs and entropies of all rows of the step
without gradient, if a component needs them. Prepare: the advantages that are made anew for every step, token weights
and aggregations, from all rows. Loss: token losses of a pack (gradus.models.training.steps.pack_loss). So packs change
nothing beyond rounding, whatever a method couples. Several ranks divide the packs; each then has the log-probs, weights
and metrics of all. If memory runs out, the step begins anew with packs of half as many tokens: the same gradient, and
no part of it twice.
Shapes: N rows of the step, M completion tokens of them end to end.
"""

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradus.models.objectives.objective import WEIGHT, Objective, Part, advantage_column
from gradus.models.objectives.rows import Rows, all_finite
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, token_logprobs
from gradus.models.training.parallel import clip_gradients, sum_gradients
from gradus.models.training.passes import Budget, OnRows, Turn, longest, turns, unobserved
from gradus.models.training.recomputation import recomputed
from gradus.models.training.settings import StepConfig, learning_rate
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic, UpdateError
from gradus.models.training.steps.pack_loss import loss_of, measured

Metrics = dict[str, float]


@dataclass(frozen=True)
class StepResult:
    """Result of a step."""

    rows: Tensor
    """(N,) int64: rows of the update."""
    advantage: Tensor
    """(N,) float64: mean over the row's counted tokens, of the first term that takes the row."""
    weight: Tensor
    """(N,) float64: mean token weight, importance weights included, over the row's counted tokens."""
    zero_gradient: Tensor
    """(N,) bool."""
    metrics: Metrics


def planned_steps(
    rows: Rows, objective: Objective, settings: StepConfig, rng: np.random.Generator
) -> tuple[Tensor, ...]:
    """Return the rows of each optimiser step, (N_step,) int64 each and ascending, decided before the first.

    Whole groups, shuffled anew for each epoch, `minibatch_groups` to a step (0: all in one). A step that nothing could
    be learnt from is left out: AdamW would move by momentum alone. The only step is taken by the policy that sampled.
    """
    group = rows["group"].numpy()
    learnable = objective.may_learn(rows).numpy()
    groups = np.unique(group)
    size = settings.minibatch_groups or len(groups)
    steps: list[Tensor] = []
    for _ in range(settings.epochs):
        order = rng.permutation(groups)
        for start in range(0, len(order), size):
            chosen = np.isin(group, order[start : start + size])
            if learnable[chosen].any():
                steps.append(torch.from_numpy(np.flatnonzero(chosen)))
    return tuple(steps)


def optimise(
    train_state: TrainState,
    rows: Rows,
    steps: Sequence[Tensor],
    objective: Objective,
    settings: StepConfig,
    *,
    check: Callable[[Tensor, Tensor], None] = lambda _rows, _logp: None,
    on_rows: OnRows = unobserved,
    budget: Budget | None = None,
    critic: Critic | None = None,
) -> Generator[StepResult]:
    """Take planned steps, one a result; raise UpdateError if a loss or gradient is not finite.

    The rows have their advantages (`Objective.with_advantages`) and what other models say of their tokens: "old.logp"
    unless one step is planned, "reference.logp", "reference.mean_logp", "teacher.ids", "teacher.top", "teacher.logp",
    "critic.value".
    With one planned step `check` is called between the gradient and the step, with the rows and the policy's log-probs
    of their tokens; otherwise the caller has the old log-probs and looks at them first. After a step whose
    KL(old || policy) exceeds `settings.max_kl` no further one is taken. A critic is trained in the same steps.
    """
    budget = budget or Budget(settings.micro_tokens)
    form = form_of(train_state.model)
    counted = counted_rows(rows, objective)
    for chosen in steps:
        step = Step(train_state, counted.select(chosen), objective, settings, form, budget, critic, on_rows)
        with recomputed(train_state.model, wanted=settings.activation_checkpointing):
            result = step.take(chosen, check)
        yield result
        if settings.max_kl is not None and result.metrics["policy/kl_old"] > settings.max_kl:
            return


def counted_rows(rows: Rows, objective: Objective) -> Rows:
    """Mask all tokens but those that carry loss, whose log-probs are all finite, the sampler's where a term needs it.

    The others are left out of loss and denominators.
    """
    found = torch.isfinite(rows["sampler.logp"]) | ~objective.needs_sampler(rows)[rows.row]
    known = [rows[name] for name in ("old.logp", "reference.logp") if name in rows]
    if known:
        found &= all_finite(*known)
    return rows.adding(mask=found & rows["trained"])


@dataclass(frozen=True)
class Step:
    """One optimiser step over some rows of an update."""

    train_state: TrainState
    rows: Rows
    """Those of the step; their mask says which tokens count."""
    objective: Objective
    settings: StepConfig
    form: Form
    budget: Budget
    critic: Critic | None = None
    on_rows: OnRows = unobserved

    def take(self, chosen: Tensor, check: Callable[[Tensor, Tensor], None] = lambda _rows, _logp: None) -> StepResult:
        """Gradients of all packs, checks, one optimiser step of the policy and of a critic; none without a gradient.

        `chosen` (N,) are the step's rows among those of the update; `check`: see `optimise`.
        """
        if not bool(self.rows.mask.any()):
            raise UpdateError("a step has no token whose log-probs are all finite")
        prepared, loss, averages, logp, weight = self.budget.run(self._gradient, longest(self.rows))
        norm = clip_gradients(self.train_state.masters.values(), self.settings.max_grad_norm)
        if not (np.isfinite(norm) and np.isfinite(loss)):
            raise UpdateError(f"step {self.train_state.step + 1} has loss {loss} and gradient norm {norm}")
        if "old.logp" not in self.rows:
            check(chosen, logp)
        zero = self._zero_gradient(prepared)
        lr = self._advance(not bool(zero.all()))
        metrics = {
            "policy/loss": loss,
            **{f"policy/{name}": value for name, value in averages.result().items()},
            "policy/grad_norm": norm,
            "policy/lr": lr,
        }
        if self.critic is not None:
            metrics |= self.critic.step(self.rows, self.form, self.budget, self.on_rows)
        first = self.objective.members(self.rows).long().argmax(1)
        taken = torch.tensor([term.advantage for term in self.objective.terms])[first][self.rows.row]
        known = [prepared[advantage_column(index)] for index in range(len(self.objective.advantages))]
        advantage = torch.stack(known).gather(0, taken[None])[0]
        means = [self.rows.row_mean(values.double()) for values in (advantage, weight)]
        return StepResult(chosen, means[0], means[1], zero, metrics)

    def _gradient(self, num_tokens: int) -> "tuple[Rows, float, Averages, Tensor, Tensor]":
        """Accumulate the gradients of all packs; return the loss, metrics, log-probs and token weights (M,)."""
        ranks, (prepared, metrics_of_step) = self.budget.ranks, self.prepared(num_tokens)
        own, total = Averages(), 0.0
        found, model = torch.zeros(2, len(self.rows.row)), self.train_state.model
        self.train_state.zero_grad()
        for turn, zero_gradient in self._turns(prepared, num_tokens):
            rows = prepared.select(turn.pack.rows)
            with torch.set_grad_enabled(not zero_gradient):
                seen = measured(model, self.objective, rows, turn.pack, self.form)
                part, logp, weight, metrics = loss_of(self.objective, rows, seen)
            if not zero_gradient:
                (part if turn.counts else 0.0 * part).backward()
            self.on_rows(turn.num_rows)
            if turn.counts:
                for each in metrics:
                    own.add(*each)
                found[:, self.rows.places(turn.pack.rows)] = torch.stack((logp, weight))
                total += float(part.detach())
        sum_gradients(ranks, self.train_state.masters.values())
        logp, weight = ranks.summed(found)
        averages = Averages()
        averages.add(metrics_of_step, self.rows.mask)
        for sums, counts in ranks.gathered([own.sums, own.counts]):
            averages.add_sums(sums, counts)
        loss = float(ranks.summed(torch.tensor(total, dtype=torch.float64)))
        return prepared, loss, averages, logp, weight

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
        self.train_state.zero_grad()
        self.train_state.step += 1
        return lr

    def prepared(self, num_tokens: int) -> tuple[Rows, dict[str, Tensor]]:
        """The rows with all that the terms need (see `loss_of`), and metrics of their tokens."""
        metrics, found = dict[str, Tensor](), dict[str, Tensor]()
        rows = self._measured(num_tokens)
        for index, each in enumerate(self.objective.advantages):
            name, of_step = advantage_column(index), each.when == "step"
            values = each.part(rows) if of_step else rows[name]
            if len(values) not in (rows.num_rows, len(rows.row)):
                raise UpdateError(f"the advantage has {len(values)} values for {rows.num_rows} rows")
            found[name] = values if each.is_by_token(values, rows.num_rows) else values[rows.row]
            metrics |= {"advantage_abs": found[name].abs()} if of_step else {}
        for index, (term, scale) in enumerate(zip(self.objective.terms, self._scales(rows), strict=True)):
            weight = self._weight(self._of(index, rows), term.weights, found[advantage_column(term.advantage)], metrics)
            found |= {f"scale.{index}": scale} | ({} if weight is None else {f"weight.{index}": weight})
        return self.rows.adding(of_tokens=found), metrics

    def _weight(
        self, rows: Rows, parts: tuple[Part, ...], advantage: Tensor, metrics: dict[str, Tensor]
    ) -> Tensor | None:
        """The product of the weights of a term, and of the row's own, (M,); their metrics are added."""
        own = rows.get(WEIGHT)
        found: Tensor | None = None if own is None else own.nan_to_num(1.0).float()[rows.row]
        for part in parts if bool(rows.mask.any()) else ():
            factor, said = part(rows.adding(of_tokens={"advantage": advantage}))
            found = factor if found is None else found * factor
            metrics |= said
        return found

    def _scales(self, rows: Rows) -> list[Tensor]:
        """By how much the loss of a token counts, (M,) float32 a term."""
        if not self.settings.count_zero_std_groups:
            varied = rows.by("group").varied(rows["reward"]) | self.objective.acting(rows)
            rows = rows.adding(mask=rows.mask & varied[rows.row])
        return [term.aggregation(self._of(index, rows)).float() for index, term in enumerate(self.objective.terms)]

    def _of(self, index: int, rows: Rows) -> Rows:
        """The rows with the mask that a term counts: of its own rows, or of the whole step."""
        if self.objective.terms[index].over == "step":
            return rows
        return rows.adding(mask=rows.mask & self.objective.members(rows)[:, index][rows.row])

    def _measured(self, num_tokens: int) -> Rows:
        """The rows with what components need of them before the step: the policy's log-probs and entropies."""
        needs, on_policy = self.objective.of_step(), "old.logp" not in self.rows
        head = [name for name in ("now.head_gradient", "now.head_curvature") if name in needs]
        if not (head or needs & ({"now.logp", "now.entropy"} | ({"old.logp"} if on_policy else set()))):
            return self.rows
        ranks, names, asked = self.budget.ranks, ["now.logp", "now.entropy", *head], Asked(head=bool(head))
        found = torch.zeros(len(names), len(self.rows.row))
        with torch.no_grad():
            for turn in turns(ranks, self.rows, torch.arange(self.rows.num_rows), self.form, num_tokens):
                temperature = self.rows["temperature"][turn.pack.rows]
                own = token_logprobs(self.train_state.model, turn.pack, temperature, self.form, asked)
                if turn.counts:
                    values = [getattr(own, name.removeprefix("now.")) for name in names]
                    found[:, self.rows.places(turn.pack.rows)] = torch.stack(values)
        measured = dict(zip(names, ranks.summed(found), strict=True))
        old = self.rows.get("old.logp")
        return self.rows.adding(of_tokens={**measured, "old.logp": measured["now.logp"] if old is None else old})

    def _zero_gradient(self, prepared: Rows) -> Tensor:
        """(N,) bool: rows whose gradient is exactly zero for certain."""
        members, found = self.objective.members(self.rows), torch.zeros(self.rows.num_rows, dtype=torch.bool)
        for index, term in enumerate(self.objective.terms):
            advantage, weight = prepared[advantage_column(term.advantage)], prepared.get(f"weight.{index}")
            acts = (advantage if weight is None else advantage * weight) != 0
            reached = torch.zeros_like(found)
            reached[self.rows.row[acts | term.acts_without_advantage]] = True
            found |= reached & members[:, index]
        return ~found

    def _turns(self, prepared: Rows, num_tokens: int) -> list[tuple[Turn, bool]]:
        """Packs of this rank, and whether their rows have zero gradient: those need none, only their metrics."""
        zero = self._zero_gradient(prepared)
        chosen = {zero_gradient: (zero == zero_gradient).nonzero()[:, 0] for zero_gradient in (False, True)}
        return [
            (turn, zero_gradient)
            for zero_gradient, rows in chosen.items()
            for turn in turns(self.budget.ranks, self.rows, rows, self.form, num_tokens)
        ]


@dataclass
class Averages:
    """Means over the tokens that a metric speaks of, and maxima of metrics whose names end in `_max`.

    >>> found = Averages()
    >>> found.add({"ratio": torch.tensor([1.0, 3.0, 9.0])}, torch.tensor([True, True, False]))
    >>> found.result()
    {'ratio': 2.0}
    """

    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, metrics: Mapping[str, Tensor], mask: Tensor) -> None:
        """Add metrics of M tokens, each (M,); those outside the mask (M,) do not count."""
        for name, value in metrics.items():
            counted = value[mask].double()
            if name.endswith("_max"):
                self._add(name, float(counted.max()) if counted.numel() else 0.0)
            else:
                self._add(name, float(counted.sum()), counted.numel())

    def add_sums(self, sums: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Add the sums of another rank."""
        for name, value in sums.items():
            self._add(name, value, counts[name])

    def result(self) -> dict[str, float]:
        """Return the metrics; 0 for one of which no token counted."""
        return {name: value / max(1, self.counts[name]) for name, value in self.sums.items()}

    def _add(self, name: str, value: float, num_counted: int = 0) -> None:
        known = self.sums.get(name)
        combined = max if name.endswith("_max") else operator.add
        self.sums[name] = value if known is None else combined(known, value)
        self.counts[name] = self.counts.get(name, 0) + num_counted
