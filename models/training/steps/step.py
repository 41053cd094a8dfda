"""One optimiser step: what its objective needs is measured, its coefficients are prepared, then the loss, pack by pack.

Measure: log-probs and entropies of all rows of the step without gradient, if a component needs them. Prepare: the
advantages that are made anew for every step, and token weights, from all rows (`StepView`). Loss: token losses of a
pack (gradus.models.training.steps.pack_loss), aggregated with the totals of the step. So packs change nothing beyond
rounding, whatever a method couples.
Several ranks divide the packs; each then has the log-probs, weights and metrics of all.
If memory runs out, the step begins anew with packs of half as many tokens: the same gradient, and no part of it twice.
Shapes: N rows of the step, M completion tokens of them end to end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gradus.models.objectives.batch import StepView
from gradus.models.training.division import Turn, turns
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.parallel.replicas import sum_gradients
from gradus.models.training.parallel.sharding import clip_gradients
from gradus.models.training.passes import Budget, pass_logprobs
from gradus.models.training.schedule import learning_rate
from gradus.models.training.state import TrainState
from gradus.models.training.steps.averages import Averages
from gradus.models.training.steps.critic import Critic
from gradus.models.training.steps.pack_loss import PackLoss, Prepared
from gradus.models.training.steps.step_rows import StepRows, UpdateError

Metrics = dict[str, float]


@dataclass(frozen=True)
class RowResults:
    """What a step did with its rows, for the table of an update."""

    rows: Tensor
    """(N,) int64: rows of the update."""
    advantage: Tensor
    """(N,) float64: mean over the row's counted tokens."""
    weight: Tensor
    """(N,) float64: mean token weight, importance weights included, over the row's counted tokens."""
    zero_gradient: Tensor
    """(N,) bool."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks during an update."""

    before: Callable[[Logprobs], None]
    """Called with the trainer's log-probs of the step's tokens before any weight changes; may raise then."""
    on_step: Callable[[int, Metrics], None]
    """A step was taken: its index and metrics."""
    on_rows: Callable[[int], None]
    """Called with the number of rows that went through a model."""
    on_results: Callable[[RowResults], None] = lambda _results: None
    """Called before `on_step` with what the step did with its rows."""


@dataclass(frozen=True)
class Step:
    """One optimiser step over some rows of an update."""

    train_state: TrainState
    about: StepRows
    hooks: Hooks
    form: Form
    budget: Budget
    critic: Critic | None = None

    def take(self) -> Metrics:
        """Gradients of all packs, checks, one optimiser step of the policy and of a critic; none without a gradient."""
        longest = self.about.rollouts.longest(self.about.rows)
        prepared, loss, averages, own, weight = self.budget.run(self._gradient, longest)
        norm = self._checked_norm(loss)
        if self.about.references.old is None:
            self.hooks.before(own)
        zero = self._zero_gradient(prepared)
        lr = self._advance(not bool(zero.all()))
        self.hooks.on_results(self._results(prepared, weight, zero))
        metrics = {f"policy/{name}": value for name, value in averages.result().items()}
        return {
            "policy/loss": loss,
            **metrics,
            "policy/grad_norm": norm,
            "policy/lr": lr,
            **self._critic_step(prepared.view),
        }

    def _gradient(self, num_tokens: int) -> tuple[Prepared, float, Averages, Logprobs, Tensor]:
        """Accumulate the gradients of all packs; return the loss, metrics, log-probs and token weights (M,)."""
        ranks, prepared = self.budget.ranks, self._prepared(num_tokens)
        own, total = Averages(), 0.0
        found = torch.zeros(3, len(self.about.row))
        self.train_state.zero_grad()
        for turn, zero_gradient in self._turns(prepared, num_tokens):
            with torch.set_grad_enabled(not zero_gradient):
                part = PackLoss.of(self.train_state.model, self.about, prepared, turn.pack, self.form)
            if not zero_gradient:
                (part.loss if turn.counts else 0.0 * part.loss).backward()
            self.hooks.on_rows(turn.num_rows)
            if turn.counts:
                for metrics, mask in part.metrics:
                    own.add(metrics, mask)
                given = (part.own.logp, part.own.truncated_logp, part.weight.detach())
                found[:, self.about.places(turn.pack)] = torch.stack(given)
                total += float(part.loss.detach())
        sum_gradients(ranks, self.train_state.masters.values())
        logp, truncated_logp, weight = ranks.summed(found)
        averages = Averages()
        averages.add(prepared.metrics, self.about.mask)
        for content in ranks.gathered(own.to_bytes()):
            averages.add_bytes(content)
        loss = float(ranks.summed(torch.tensor(total, dtype=torch.float64)))
        return prepared, loss, averages, Logprobs(self.about.tokens, logp, truncated_logp), weight

    def _checked_norm(self, loss: float) -> float:
        """The gradient's norm before it is scaled down to the limit."""
        norm = clip_gradients(self.train_state.masters.values(), self.about.settings.max_grad_norm)
        if not (np.isfinite(norm) and np.isfinite(loss)):
            raise UpdateError(f"step {self.train_state.step + 1} has loss {loss} and gradient norm {norm}")
        return norm

    def _advance(self, has_gradient: bool) -> float:
        """Take the optimiser's step, unless it would move by momentum alone; return the learning rate."""
        settings, optimizer = self.about.settings, self.train_state.optimizer
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

    def _critic_step(self, view: StepView | None) -> Metrics:
        """Train the critic on the same rows."""
        if self.critic is None or view is None:
            return {}
        return self.critic.step(self.about, view, self.form, self.budget, self.hooks.on_rows)

    def _prepared(self, num_tokens: int) -> Prepared:
        about, settings = self.about, self.about.settings
        advantage = about.rollouts.advantage[about.rows][about.row]
        if settings.step_advantage is None and not settings.weights and self.critic is None:
            return Prepared(advantage, None, {}, None)
        view = self._view(advantage, num_tokens)
        metrics: dict[str, Tensor] = {}
        if settings.step_advantage is not None:
            advantage = self._by_token(settings.step_advantage(view))
            metrics["advantage_abs"] = advantage.abs()
        weight = torch.ones(len(about.row), dtype=torch.float32)
        for weighing in settings.weights:
            factor, found = weighing(replace(view, advantage=advantage))
            weight, metrics = weight * factor, {**metrics, **found}
        return Prepared(advantage, weight if settings.weights else None, metrics, view)

    def _by_token(self, advantage: Tensor) -> Tensor:
        """An advantage (N,) or (M,) as (M,). A step of N = M has one token a row, in the order of the rows."""
        num_rows, row = len(self.about.rows), self.about.row
        if len(advantage) not in (num_rows, len(row)):
            raise UpdateError(f"the advantage has {len(advantage)} values for {num_rows} rows")
        return advantage[row] if len(advantage) == num_rows else advantage

    def _view(self, advantage: Tensor, num_tokens: int) -> StepView:
        """Measure what the components need."""
        about, known, tokens = self.about, self.about.references, self.about.tokens
        logp = entropy = None
        if about.settings.needs & {"logp", "entropy"}:
            logp, entropy = self._measured(num_tokens)
        return StepView(
            scored=about.scored,
            row=about.row,
            mask=about.mask,
            advantage=advantage,
            logp_sampler=about.rollouts.logprobs[tokens],
            logp_old=logp if known.old is None else known.old.logp[tokens],
            logp=logp,
            entropy=entropy,
            logp_ref=None if known.reference is None else known.reference[tokens],
            values=None if known.values is None else known.values[tokens],
        )

    def _measured(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """The policy's log-probs and entropies before the step, (M,) each."""
        ranks, found = self.budget.ranks, torch.zeros(2, len(self.about.tokens))
        with torch.no_grad():
            for turn in turns(ranks, self.about.rollouts, self.about.rows, self.form, num_tokens):
                own = pass_logprobs(self.train_state.model, self.about.rollouts, turn.pack, self.form)
                if turn.counts:
                    found[:, self.about.places(turn.pack)] = torch.stack((own.logp, own.entropy))
        logp, entropy = ranks.summed(found)
        return logp, entropy

    def _zero_gradient(self, prepared: Prepared) -> Tensor:
        """(N,) bool: rows whose gradient is exactly zero for certain."""
        acts = prepared.advantage != 0 if prepared.weight is None else (prepared.advantage * prepared.weight) != 0
        zero = torch.ones(len(self.about.rows), dtype=torch.bool)
        zero[self.about.row[acts | self.about.acts_without_advantage]] = False
        return zero

    def _turns(self, prepared: Prepared, num_tokens: int) -> list[tuple[Turn, bool]]:
        """Packs of this rank, and whether their rows have zero gradient: those need none, only their metrics."""
        zero, rows = self._zero_gradient(prepared), self.about.rows
        return [
            (turn, zero_gradient)
            for zero_gradient in (False, True)
            for turn in turns(
                self.budget.ranks, self.about.rollouts, rows[zero == zero_gradient], self.form, num_tokens
            )
        ]

    def _results(self, prepared: Prepared, weight: Tensor, zero: Tensor) -> RowResults:
        def mean(values: Tensor) -> Tensor:
            sums = torch.zeros(len(zero), dtype=torch.float64)
            sums.index_add_(0, self.about.row, torch.where(self.about.mask, values.double(), 0.0))
            return sums / self.about.totals.row_tokens.clamp_min(1)

        return RowResults(self.about.rows, mean(prepared.advantage), mean(weight), zero)
