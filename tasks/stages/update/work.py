"""The steps of an update one after the other."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from gradus.components.chosen import AdvantageConfig, Chosen
from gradus.data.arrays import Bools
from gradus.data.errors import GateError, StageError
from gradus.data.metrics import zero_std_groups
from gradus.models.objectives.columns import columns_of
from gradus.models.objectives.objective import Advantage, Objective, Part, Term
from gradus.models.objectives.rows import Rows
from gradus.models.training.learning_rows import mismatch, row_differences
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.steps.critic import UpdateError
from gradus.models.training.update import StepResult, optimise, planned_steps
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import fault_point
from gradus.tasks.identity.loading import load
from gradus.tasks.preflight.abilities import check_objective
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.gates import update_breach, without_signal
from gradus.tasks.stages.update.roles import role_columns
from gradus.tasks.stages.update.rows import judged_rows, learning_rows_of, refuse_truncated, truncated
from gradus.tasks.stages.update.start import Start

StepMetrics = dict[str, float]
WITHOUT_SIGNAL = "curate problems that are neither always nor never solved, or raise n"


@dataclass
class Work:
    """The rows of an update and what its steps did with them."""

    ctx: StageContext
    config: UpdateConfig
    objective: Objective
    table: pa.Table
    counts: dict[str, int]
    """Rows and groups that were left out."""
    rows: Rows
    zero_std: Bools
    """Groups without variance in their rewards."""
    mismatch_metrics: dict[str, float] = field(default_factory=dict)
    """Differences between sampler and trainer."""
    named: dict[str, str] = field(default_factory=dict)
    """The rows that differ most."""
    steps: list[StepMetrics] = field(default_factory=list)
    """Metrics of the steps taken."""
    results: list[StepResult] = field(default_factory=list)
    trainer: tuple[Tensor, Tensor] | None = None
    """Rows by number, and the policy's log-probs of their tokens before the first step."""
    _rows_done: int = 0
    _rows_in_all: int = 1

    @classmethod
    def of(cls, ctx: StageContext, config: UpdateConfig) -> "Work":
        """Read the rows; BadInputError or GateError if they cannot be learned from."""
        objective, (table, counts) = objective_of(config), judged_rows(ctx, config)
        if config.correction is not None:
            refuse_truncated(table, config)
        rows = learning_rows_of(table, config)
        zero_std = zero_std_groups(rows["reward"].numpy(), rows["group"].numpy())
        return cls(ctx, config, objective, table, counts, objective.with_advantages(rows), zero_std)

    def has_signal(self) -> bool:
        """Return whether a row has a gradient."""
        varied = ~torch.from_numpy(self.zero_std)[self.rows["group"]]
        return bool(((self.rows.lengths > 0) & self.objective.may_learn(self.rows, varied)).any())

    def refuse_uniform(self) -> None:
        """Raise GateError if too many groups have no variance, or all where the run does not let an update skip."""
        found = self.uniform_groups()
        sentence = update_breach({"summary": found}, self.config)
        if not (self.has_signal() or self.ctx.facts.get("may_skip")):
            sentence = f"{without_signal(found['groups'])}: there is nothing to learn from"
        if sentence:
            raise GateError(sentence, hint=WITHOUT_SIGNAL)

    def uniform_groups(self) -> dict[str, Any]:
        """Groups, those without variance in their rewards, and a rollout of the first such group."""
        found: dict[str, Any] = {"groups": len(self.zero_std), "zero_std_groups": int(self.zero_std.sum())}
        if found["zero_std_groups"]:
            first = int(np.argmax(self.zero_std[self.rows["group"].numpy()]))
            found["first_zero_std"] = self.values_of("rollout_id")[first]
        return found

    def values_of(self, column: str) -> list[Any]:
        """Return a short column of its rows as Python values, (N,)."""
        return self.table.column(column).to_pylist()

    def take_steps(self, start: Start, budget: Budget) -> int:
        """Take every step; return the completion tokens trained on in all of them."""
        config, rows, state = self.config, self.rows, start.train_state
        steps = planned_steps(rows, self.objective, config, state.rng)
        on_policy = len(steps) == 1
        num_passes = (not on_policy) + config.needs_reference + config.needs_teacher + config.needs_critic
        self._rows_in_all = sum(map(len, steps)) * (1 + config.needs_critic) + rows.num_rows * num_passes
        known: dict[str, Tensor] = {}
        if not on_policy:
            known["old.logp"] = all_tokens(state.model, rows, budget, self.on_rows).logp
            self.check_mismatch(torch.arange(rows.num_rows), known["old.logp"])
        known |= role_columns(self, start, budget)
        num_tokens, before = 0, time.perf_counter()
        try:
            for result in optimise(
                state,
                rows.adding(of_tokens=known),
                steps,
                self.objective,
                config,
                check=self.check_mismatch,
                on_rows=self.on_rows,
                budget=budget,
                critic=start.critic,
            ):
                step_s, before = time.perf_counter() - before, time.perf_counter()
                self.results.append(result)
                self.steps.append({**result.metrics, "perf/step_s": step_s})
                fault_point("update:after_step")
                step_tokens = int(rows.lengths[result.rows].sum())
                num_tokens += step_tokens
                self._beat(f"step {len(self.steps)} of {len(steps)}: {step_tokens / step_s:,.0f} tokens/s")
        except UpdateError as error:
            hint = "lower update.lr, or look at the rollouts and the rewards"
            raise StageError(f"the update was refused: {error}", hint=hint) from None
        return num_tokens

    def check_mismatch(self, chosen: Tensor, logp: Tensor) -> None:
        """Gate: refuse rollouts whose recorded log-probs are not those of this policy."""
        self.trainer, rows = (chosen, logp), self.rows.select(chosen)
        self.mismatch_metrics = mismatch(rows, logp)
        if not self.mismatch_metrics:  # no row is the policy's own
            return
        worst = int(chosen[row_differences(rows, logp).nan_to_num(0.0).argmax()])
        self.named = {"most_mismatched": str(self.values_of("rollout_id")[worst])}
        sentence = update_breach({"metrics": self.mismatch_metrics, "summary": self.named}, self.config)
        if sentence:
            hint = "the sampler had other weights, another temperature or another tokenizer; roll out again"
            if truncated(self.table).any():
                hint = "the rows were sampled with top_p or top_k, and the trainer's log-probs are of all tokens"
            raise GateError(sentence, hint=hint)
        if "mismatch/logp_diff_mean" not in self.mismatch_metrics:
            raise GateError("no token has a finite log-prob of both sampler and trainer", hint="roll out again")

    def on_rows(self, num_rows: int) -> None:
        """Count rows that went through a model."""
        self._rows_done += num_rows
        self._beat(f"{self._rows_done} rows computed")

    def _beat(self, text: str) -> None:
        self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), text)


def objective_of(config: UpdateConfig) -> Objective:
    """Return the objective; UsageError if its parts do not go together."""
    check_objective(config)
    terms = config.objective
    chosen = list(dict.fromkeys(str(each.advantage) for each in terms))
    advantages = {str(each.advantage): each.advantage for each in terms if each.advantage is not None}
    return Objective(
        advantages=tuple(_advantage(advantages[text]) for text in chosen),
        terms=tuple(
            Term(
                loss=_part(each.loss),
                aggregation=_part(each.aggregation or config.aggregation),
                advantage=chosen.index(str(each.advantage)),
                weights=tuple(_part(part) for part in each.weights or ()),
                coefficient=each.coefficient,
                name=each.name,
                acts_without_advantage=each.loss.component.acts_without_advantage,
                needs_sampler=each.loss.component.needs_sampler,
                per=each.loss.component.per or "token",
                regulariser=each.loss.component.regulariser,
                over=each.over,
            )
            for each in terms
        ),
        correction=None if config.correction is None else _part(config.correction),
    )


def _advantage(chosen: AdvantageConfig) -> Advantage:
    found = chosen.component
    return Advantage(_part(chosen), found.when, found.per or "row", found.compares_group)


def _part(chosen: Chosen) -> Part:
    component = chosen.component
    return Part(load(chosen), f"{component.kind} {chosen.label}", columns_of(component))
