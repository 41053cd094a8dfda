"""The steps of an update one after the other, and the report of them and of its rows."""

import io
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gradus.components.chosen import Chosen
from gradus.data.arrays import Bools, one_array, pc
from gradus.data.errors import GateError, StageError
from gradus.data.lake.schema import BASE, OWN, UPDATES, cast_to_schema
from gradus.data.metrics import zero_std_groups
from gradus.models.objectives.columns import columns_of
from gradus.models.objectives.objective import Advantage, Objective, Part, Term
from gradus.models.objectives.rows import Rows
from gradus.models.training.learning_rows import mismatch, row_differences
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.steps.critic import UpdateError
from gradus.models.training.update import StepResult, optimise, planned_steps
from gradus.tasks.artifacts.weights import base_of_next
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import fault_point
from gradus.tasks.identity.loading import load
from gradus.tasks.preflight.abilities import check_objective
from gradus.tasks.runs.records import Metrics
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.gates import update_breach, without_signal
from gradus.tasks.stages.update.roles import role_columns
from gradus.tasks.stages.update.rows import judged_rows, learning_rows_of, refuse_truncated, truncated
from gradus.tasks.stages.update.train_state import Start

WITHOUT_SIGNAL = "curate problems that are neither always nor never solved, or raise n"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REFUSAL = "does not have a deterministic implementation"


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
    results: list[StepResult] = field(default_factory=list)
    """Those of the steps taken."""
    step_clock: list[Metrics] = field(default_factory=list)
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
                self.step_clock.append({"perf/step_s": step_s})
                fault_point("update:after_step")
                step_tokens = int(rows.lengths[result.rows].sum())
                num_tokens += step_tokens
                self._beat(f"step {len(self.results)} of {len(steps)}: {step_tokens / step_s:,.0f} tokens/s")
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
    described = [(advantages[text], advantages[text].component) for text in chosen]
    return Objective(
        advantages=tuple(
            Advantage(_part(each), found.when, found.per or "row", found.compares_group) for each, found in described
        ),
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


def _part(chosen: Chosen) -> Part:
    component = chosen.component
    return Part(load(chosen), f"{component.kind} {chosen.label}", columns_of(component))


def skipped(work: Work) -> StageResult:
    """Return the result of an update without a step; its artifact has no policy of its own."""
    metrics = {**_rows_report(work), "trained/skipped_updates": 1.0}
    summary = {"updates": 0, "skipped_updates": 1, **_counts(work)}
    return StageResult(metrics, summary, extreme_samples(work))


def _counts(work: Work) -> dict[str, object]:
    """Counts of groups and rows, with the largest age of a row, in updates, and the first row of that age."""
    counts: dict[str, object] = {**work.counts, **work.uniform_groups()}
    if ages := work.values_of("age"):
        oldest = int(np.argmax(ages))
        counts |= {"oldest_updates": int(ages[oldest]), "oldest": work.values_of("rollout_id")[oldest]}
    return counts


def result(work: Work, budget: Budget, num_tokens: int, seconds: float) -> StageResult:
    """Return the result of an update that took its steps."""
    steps = [each.metrics for each in work.results]
    of_steps = {n: max(s[n] for s in steps) if n.endswith("_max") else value for n, value in steps[-1].items()}
    metrics = {**_rows_report(work), **work.mismatch_metrics, **of_steps}
    summary = {"updates": len(steps), "tokens_trained": num_tokens, **_counts(work), **work.named}
    halvings = {"perf/memory_halvings": float(budget.num_halvings)} if budget.num_halvings else {}
    return StageResult(
        metrics,
        summary,
        extreme_samples(work),
        steps,
        clock={"perf/tokens_per_s": num_tokens / seconds, **halvings},
        parents={BASE: base_of_next(work.ctx.store, work.ctx.one("policy"))} if work.config.lora else {},
        step_clock=work.step_clock,
    )


def _rows_report(work: Work) -> dict[str, float]:
    """Means, maxima and shares over the rows that an update learnt from; nothing without rows."""
    rows, zero_std = work.rows, work.zero_std
    if not rows.num_rows:
        return {}
    not_right = torch.zeros(len(zero_std), dtype=torch.float64)
    not_right.index_add_(0, rows["group"], (rows["correct"] != 1).double())
    lengths = rows["length"].double()
    return {
        "trained/reward_mean": float(rows["reward"].mean()),
        "trained/reward_std": float(rows["reward"].std(correction=0)),
        "trained/frac_zero_std_groups": float(zero_std.mean()),
        "trained/frac_all_right": float((not_right == 0).double().mean()),
        "trained/length_mean": float(lengths.mean()),
        "trained/length_max": float(lengths.max()),
        "trained/truncated_frac": float(np.mean([reason == "length" for reason in work.values_of("finish_reason")])),
        "data/age_mean": float(np.mean(work.values_of("age"))),
        "data/age_max": float(np.max(work.values_of("age"))),
        "trained/hint_level_mean": float(np.mean([level or 0 for level in work.values_of("hint_level")])),
    }


def extreme_samples(work: Work) -> list[dict[str, Any]]:
    """The rows that the update pulled hardest towards and away from."""
    rows = work.rows
    advantage = rows["advantage"] if len(rows["advantage"]) == rows.num_rows else rows.row_mean(rows["advantage"])
    order = torch.argsort(advantage, stable=True).tolist()
    half = min(NUM_SAMPLES // 2, len(order) // 2)
    chosen = [*order[::-1][:half], *order[:half]]
    named = ["rollout_id", "problem_id", "hint_level", "reward", "correct", "completion"]
    table: list[dict[str, Any]] = work.table.select(named).take(np.array(chosen, dtype=np.int64)).to_pylist()
    return [
        {**row, "advantage": float(advantage[i]), "tokens": int(rows["length"][i])}
        for i, row in zip(chosen, table, strict=True)
    ]


def update_table(work: Work) -> bytes:
    """Return the table of rows as a Parquet file, a file of the checkpoint: of each row the last step that took it."""
    table, rows, results = work.table, work.rows, work.results
    columns = {name: one_array(table.column(name)) for name in ("rollout_id", "problem_id", "reward")}
    columns["origin"] = one_array(pc.coalesce(table.column("origin"), OWN))
    untaken = np.ones(rows.num_rows, dtype=np.bool_)
    for result in results:
        untaken[result.rows.numpy()] = False
    for name, kind in (("advantage", np.float64), ("weight", np.float64), ("zero_gradient", np.bool_)):
        found = np.zeros(rows.num_rows, dtype=kind)
        for result in results:
            found[result.rows.numpy()] = getattr(result, name).numpy()
        columns[name] = pa.array(found, mask=untaken)
    if work.trainer is not None:
        chosen, logp = work.trainer
        differences = np.full(rows.num_rows, np.nan)
        differences[chosen.numpy()] = row_differences(rows.select(chosen), logp).numpy()
        columns["mismatch"] = pa.array(differences, mask=np.isnan(differences))
        if work.config.keep_logprobs:  # null for a row that no step took
            values = np.full(len(rows.row), np.nan, dtype=np.float32)
            values[rows.places(chosen).numpy()] = logp.numpy()
            there = np.isin(np.arange(rows.num_rows), chosen.numpy()) & (rows.lengths > 0).numpy()
            ends = pa.array(rows["completion"].offsets.numpy(), pa.int32())
            columns["logprobs"] = pc.if_else(pa.array(there), pa.ListArray.from_arrays(ends, pa.array(values)), None)
    file = io.BytesIO()
    pq.write_table(cast_to_schema(pa.table(columns), UPDATES), file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


@contextmanager
def deterministic(*, wanted: bool) -> Generator[None]:
    """Let PyTorch choose deterministic algorithms for a while; StageError if an operation has none.

    On a GPU cuBLAS needs a workspace of fixed size, which PyTorch reads from the environment.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warning = torch.is_deterministic_algorithms_warn_only_enabled()
    sets_workspace = torch.cuda.is_available() and _WORKSPACE not in os.environ
    if sets_workspace:
        os.environ[_WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if _REFUSAL not in str(error):
            raise
        operation = str(error).partition(_REFUSAL)[0].strip()
        raise StageError(
            f"{operation} {_REFUSAL}", hint="set update.deterministic=false, or update.device=cpu"
        ) from None
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warning)
        if sets_workspace:
            del os.environ[_WORKSPACE]
