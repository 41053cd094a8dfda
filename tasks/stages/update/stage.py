"""Stage `update`: scored rollouts and the policy that made them become the next policy.

Which rows count is decided in gradus.tasks.stages.update.rows; the mathematics is gradus.models.training.update. What
is here: gates, the train state from disk or from this worker's memory (the same bits), the checkpoint, the report.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradus.data.arrays import Bools
from gradus.data.errors import GateError, StageError
from gradus.data.lake.schema import ROWS_FILE
from gradus.data.metrics import zero_std_groups
from gradus.models.objectives.batch import ScoredBatch
from gradus.models.policy import Policy
from gradus.models.training.mismatch import mismatch, num_outside, row_differences
from gradus.models.training.packed.logprobs import Logprobs, vocabulary
from gradus.models.training.passes import Budget, all_logprobs
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.steps.critic_files import critic_bytes, restore_critic
from gradus.models.training.steps.step import Hooks
from gradus.models.training.steps.step_rows import UpdateError
from gradus.models.training.update import StepPlan, acting_rows, optimise
from gradus.tasks.artifacts.loading import oom_as_stage_error
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.faults import fault_point
from gradus.tasks.runs.profiles import trace_of
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.gates import update_breach
from gradus.tasks.stages.update.conditions import deterministic, profiled
from gradus.tasks.stages.update.objective import update_advantage, update_settings
from gradus.tasks.stages.update.origins import compared_tokens, loss_codes, trained_tokens
from gradus.tasks.stages.update.report import (
    extreme_samples,
    last_and_worst,
    oldest,
    rows_report,
    uniform_groups,
    without_clock,
)
from gradus.tasks.stages.update.resume_state import Progress, StepMetrics
from gradus.tasks.stages.update.roles import RolePasses, critic_of
from gradus.tasks.stages.update.rows import ScoredRows, judged_rows, refuse_truncated, refuse_unknown_tokens
from gradus.tasks.stages.update.table import ROWS_STATE, RowTable
from gradus.tasks.stages.update.train_state import keep_warm, train_state_of, write_checkpoint

_RESUMABLE = "steps"


def run(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take the optimiser steps of one update and write the checkpoint that they end in."""
    started = time.perf_counter()
    refuse_training(ctx.store, ctx.one("policy"))
    settings = update_settings(config)
    rows = judged_rows(ctx, config)
    if config.correction is not None and config.truncation == "refused":
        refuse_truncated(rows)
    batch = rows.batch()
    rollouts = _rollouts(rows, batch, config)
    zero_std = zero_std_groups(batch.reward.numpy(), batch.group.numpy())
    _refuse_without_signal(rollouts, zero_std, uniform_groups(rows, batch, zero_std), config, settings)
    train_state, policy = train_state_of(ctx, settings, config)
    refuse_unknown_tokens(rows, vocabulary(policy.model))
    work = _Work(ctx, config, settings, train_state, policy, rows, rollouts, critic_of(ctx, config, policy))
    trace = trace_of(ctx.store.path(ctx.out.ref)) if config.profile else None
    with (
        oom_as_stage_error(f"updating with {config.micro_tokens} tokens at once", "lower update.micro_tokens"),
        deterministic(wanted=config.deterministic),
        profiled(trace) as after_step,
    ):
        num_tokens = work.take_steps(after_step)
    fault_point("update:before_checkpoint")
    write_checkpoint(ctx, policy, train_state, config)
    for name, content in work.files().items():
        ctx.out.write_file(name, content)
    keep_warm(ctx, policy, train_state, config)
    steps, step_clock = without_clock(work.steps)
    metrics = {**rows_report(rows, batch, zero_std), **work.mismatch_metrics, **last_and_worst(steps)}
    summary = {
        "updates": len(work.steps),
        "tokens_trained": num_tokens,
        "replaced_groups": rows.replaced_groups,
        "unjudged_rows": rows.unjudged_rows,
        **({"unjoined_rows": rows.unjoined_rows} if rows.unjoined_rows else {}),
        **uniform_groups(rows, batch, zero_std),
        **oldest(rows),
        **work.named,
    }
    return StageResult(
        metrics,
        summary,
        extreme_samples(rows, rollouts),
        steps,
        clock={"perf/tokens_per_s": num_tokens / (time.perf_counter() - started), **work.memory},
        step_clock=step_clock,
    )


@dataclass
class _Work:
    """One attempt at the steps of an update."""

    ctx: StageContext
    config: UpdateConfig
    settings: UpdateSettings
    train_state: TrainState
    policy: Policy
    rows: ScoredRows
    rollouts: Rollouts
    critic: Critic | None
    mismatch_metrics: dict[str, float] = field(default_factory=dict)
    """How sampler and trainer differ."""
    named: dict[str, str] = field(default_factory=dict)
    """The rows that differ most."""
    steps: list[StepMetrics] = field(default_factory=list)
    """Metrics of the steps taken, by this attempt or by an earlier one."""
    table: RowTable = field(init=False)
    budget: Budget = field(init=False)
    trainer: Logprobs | None = None
    """The policy's log-probs before the first step."""
    _rows_done: int = 0
    _rows_in_all: int = 1

    def __post_init__(self) -> None:
        """Begin with an empty table and the whole budget."""
        self.table = RowTable.of(self.rollouts.num_rows)
        self.budget = Budget(self.config.micro_tokens)

    def take_steps(self, after_step: Callable[[], None]) -> int:
        """Take every step that no earlier attempt took; return the completion tokens trained on in all of them."""
        plan = StepPlan.of(self.rollouts, self.settings, self.train_state.rng)
        num_rows = self.rollouts.num_rows
        config = self.config
        num_passes = (not plan.on_policy) + config.needs_reference + config.needs_teacher + config.needs_critic
        self._rows_in_all = sum(map(len, plan.steps)) * (1 + config.needs_critic) + num_rows * num_passes
        old = None if plan.on_policy else self._old_logprobs()
        if old is not None:
            self.check_mismatch(old)
        passes = RolePasses(self.ctx, config, self.rows, self.rollouts, self.policy, self.budget, self.on_rows)
        known = passes.references(old, self.train_state, self.critic)
        progress = Progress(self.ctx.out.scratch / _RESUMABLE, self.train_state)
        self._go_on(*progress.restore())
        clock = _Clock()

        def on_step(index: int, metrics: StepMetrics) -> None:
            step_s = clock.lap_s()
            self.steps.append({**metrics, "perf/step_s": step_s})
            after_step()
            every, taken = self.config.save_every_steps, index + 1
            if every and taken % every == 0 and taken < len(plan.steps):
                progress.save(self.steps, self._state())
            fault_point("update:after_step")
            speed = int(self.rollouts.completions.lengths[plan.steps[index]].sum()) / step_s
            self._beat(f"step {taken} of {len(plan.steps)}: {speed:,.0f} tokens/s")

        hooks = Hooks(self.check_mismatch, on_step, self.on_rows, self.table.add)
        taken, budget, critic = tuple(self.steps), self.budget, self.critic
        try:
            optimise(
                self.train_state, self.rollouts, plan, self.settings, known, hooks, taken, budget=budget, critic=critic
            )
        except UpdateError as error:
            hint = "lower update.lr, or look at the rollouts and the rewards"
            raise StageError(f"the update was refused: {error}", hint=hint) from None
        return sum(int(self.rollouts.completions.lengths[rows].sum()) for rows in plan.steps[: len(self.steps)])

    def check_mismatch(self, trainer: Logprobs) -> None:
        """Gate: refuse rollouts whose recorded log-probs are not those of this policy."""
        self.trainer = trainer
        self.mismatch_metrics = mismatch(self.rollouts, trainer)
        if not self.mismatch_metrics:  # no row is the policy's own
            return
        self.named = {"most_mismatched": self._id(row_differences(self.rollouts, trainer))}
        if self.mismatch_metrics.get("mismatch/outside_frac"):
            self.named["most_outside"] = self._id(num_outside(self.rollouts, trainer))
        sentence = update_breach({"metrics": self.mismatch_metrics, "summary": self.named}, self.config)
        if sentence:
            hint = "the sampler had other weights, another temperature or another tokenizer; roll out again"
            if self.rollouts.drawn is None and self.rows.drawing() is not None:
                hint = "the rows were sampled with top_p or top_k: update with truncation = masked"
            raise GateError(sentence, hint=hint)
        if self.mismatch_metrics and "mismatch/logp_diff_mean" not in self.mismatch_metrics:
            raise GateError("no token has a finite log-prob of both sampler and trainer", hint="roll out again")

    def _id(self, values: torch.Tensor) -> str:
        """The rollout with the largest of values (N,)."""
        return str(self.rows.texts("rollout_id")[int(values.argmax())])

    def on_rows(self, num_rows: int) -> None:
        """Count rows that went through a model."""
        self._rows_done += num_rows
        self._beat(f"{self._rows_done} rows computed")

    def _beat(self, text: str) -> None:
        self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), text)

    def files(self) -> dict[str, bytes]:
        """Files of the checkpoint beside the policy and its train state: the table of rows, the critic."""
        table = self.table.parquet(self.rows, self.rollouts, self.trainer, keep_logprobs=self.config.keep_logprobs)
        return {ROWS_FILE: table, **({} if self.critic is None else critic_bytes(self.critic))}

    @property
    def memory(self) -> dict[str, float]:
        """How often memory ran out and packs were made half as large; empty if it never did."""
        return {"perf/memory_halvings": float(self.budget.num_halvings)} if self.budget.num_halvings else {}

    def _state(self) -> dict[str, bytes]:
        return {ROWS_STATE: self.table.state(), **({} if self.critic is None else critic_bytes(self.critic))}

    def _go_on(self, steps: list[StepMetrics], files: Mapping[str, bytes]) -> None:
        """Continue after the steps of an earlier attempt."""
        self.steps = steps
        if steps:
            self.table.restore(files[ROWS_STATE])
            if self.critic is not None:
                restore_critic(self.critic, files)

    def _old_logprobs(self) -> Logprobs:
        return all_logprobs(self.train_state.model, self.rollouts, self.budget, self.on_rows)


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_s(self) -> float:
        """Seconds since the last lap."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def _rollouts(rows: ScoredRows, batch: ScoredBatch, config: UpdateConfig) -> Rollouts:
    trained, compared = trained_tokens(rows.table), compared_tokens(rows.table)
    return Rollouts(
        prompts=rows.prompts(),
        completions=rows.tokens("completion_tokens"),
        logprobs=rows.logprobs(),
        temperature=rows.temperature(),
        advantage=update_advantage(config, batch),
        group=batch.group,
        reward=batch.reward,
        correct=batch.correct,
        origin=torch.from_numpy(loss_codes(rows.table, config)) if config.origin_losses else None,
        trained=None if trained is None else torch.from_numpy(trained),
        compared=None if compared is None else torch.from_numpy(compared),
        drawn=rows.drawing() if config.truncation == "masked" else None,
    )


def _refuse_without_signal(
    rollouts: Rollouts, zero_std: Bools, uniform: dict[str, Any], config: UpdateConfig, settings: UpdateSettings
) -> None:
    learnable = rollouts.completions.lengths > 0
    if settings.step_advantage is not None:
        varied = ~torch.from_numpy(zero_std)[rollouts.group]
        learnable &= varied | acting_rows(rollouts, settings) | config.needs_critic  # a critic compares across groups
    else:
        learnable &= (rollouts.advantage != 0) | acting_rows(rollouts, settings)
    if not bool(learnable.any()):
        raise GateError(
            f"all {len(zero_std)} groups have rewards without variance: there is nothing to learn from",
            hint="curate problems that are neither always nor never solved, or raise n",
        )
    if sentence := update_breach({"summary": uniform}, config):
        raise GateError(sentence, hint="curate problems of medium difficulty, or raise n")
