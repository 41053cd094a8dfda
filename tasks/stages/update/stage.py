"""Stage `update`: scored rollouts and the policy that made them become the next policy.

Which rows count is decided in gradus.tasks.stages.update.rows; the mathematics is gradus.models.training.update. What
is here: gates, the train state from disk or from this worker's memory (the same bits), the checkpoint, the report.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from gradus.data.arrays import Bools
from gradus.data.errors import BadInputError, GateError, StageError
from gradus.data.metrics import zero_std_groups
from gradus.models.objectives.batch import ScoredBatch
from gradus.models.training.mismatch import mismatch, num_outside, row_differences
from gradus.models.training.packed.logprobs import Logprobs, vocabulary
from gradus.models.training.passes import all_logprobs
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.models.training.step import Hooks, ReferenceLogprobs, UpdateError, acts_everywhere
from gradus.models.training.update import StepPlan, optimise
from gradus.tasks.artifacts.loading import loaded_policy, oom_as_stage_error
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.faults import fault_point
from gradus.tasks.runs.profiles import trace_of
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.gates import update_breach
from gradus.tasks.stages.update.conditions import deterministic, profiled
from gradus.tasks.stages.update.objective import update_advantage, update_settings
from gradus.tasks.stages.update.report import (
    extreme_samples,
    last_and_worst,
    oldest,
    rows_report,
    uniform_groups,
    without_clock,
)
from gradus.tasks.stages.update.resume_state import Progress, StepMetrics
from gradus.tasks.stages.update.rows import ScoredRows, judged_rows, refuse_truncated, refuse_unknown_tokens
from gradus.tasks.stages.update.train_state import keep_warm, train_state_of, write_checkpoint

_RESUMABLE = "steps"


def run(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take the optimiser steps of one update and write the checkpoint that they end in."""
    started = time.perf_counter()
    refuse_training(ctx.store, ctx.one("policy"))
    settings = update_settings(config)
    rows = judged_rows(ctx, config.max_age)
    if config.correction is not None and config.truncation == "refused":
        refuse_truncated(rows)
    batch = rows.batch()
    rollouts = _rollouts(rows, batch, config)
    zero_std = zero_std_groups(batch.reward.numpy(), batch.group.numpy())
    _refuse_without_signal(rollouts, zero_std, uniform_groups(rows, batch, zero_std), config, settings)
    train_state, policy = train_state_of(ctx, settings, config)
    refuse_unknown_tokens(rows, vocabulary(policy.model))
    work = _Work(ctx, config, settings, train_state, rows, rollouts)
    trace = trace_of(ctx.store.path(ctx.out.ref)) if config.profile else None
    with (
        oom_as_stage_error(f"updating with {config.micro_tokens} tokens at once", "lower update.micro_tokens"),
        deterministic(wanted=config.deterministic),
        profiled(trace) as after_step,
    ):
        num_tokens = work.take_steps(after_step)
    fault_point("update:before_checkpoint")
    write_checkpoint(ctx, policy, train_state, config)
    keep_warm(ctx, policy, train_state, config)
    steps, step_clock = without_clock(work.steps)
    metrics = {**rows_report(rows, batch, zero_std), **work.mismatch_metrics, **last_and_worst(steps)}
    summary = {
        "updates": len(work.steps),
        "tokens_trained": num_tokens,
        "replaced_groups": rows.replaced_groups,
        "unjudged_rows": rows.unjudged_rows,
        **uniform_groups(rows, batch, zero_std),
        **oldest(rows),
        **work.named,
    }
    return StageResult(
        metrics,
        summary,
        extreme_samples(rows, rollouts),
        steps,
        clock={"perf/tokens_per_s": num_tokens / (time.perf_counter() - started)},
        step_clock=step_clock,
    )


@dataclass
class _Work:
    """One attempt at the steps of an update."""

    ctx: StageContext
    config: UpdateConfig
    settings: UpdateSettings
    train_state: TrainState
    rows: ScoredRows
    rollouts: Rollouts
    mismatch_metrics: dict[str, float] = field(default_factory=dict)
    """How sampler and trainer differ."""
    named: dict[str, str] = field(default_factory=dict)
    """The rows that differ most."""
    steps: list[StepMetrics] = field(default_factory=list)
    """Metrics of the steps taken, by this attempt or by an earlier one."""
    _rows_done: int = 0
    _rows_in_all: int = 1

    def take_steps(self, after_step: Callable[[], None]) -> int:
        """Take every step that no earlier attempt took; return the completion tokens trained on in all of them."""
        plan = StepPlan.of(self.rollouts, self.settings, self.train_state.rng)
        num_rows = self.rollouts.num_rows
        passes = (not plan.on_policy) + self.config.needs_reference
        self._rows_in_all = sum(map(len, plan.steps)) + num_rows * passes
        old = None if plan.on_policy else self._logprobs(self.train_state.model)
        if old is not None:
            self.check_mismatch(old)
        references = ReferenceLogprobs(old, self._reference())
        progress = Progress(self.ctx.out.scratch / _RESUMABLE, self.train_state)
        self.steps = progress.restore()
        clock = _Clock()

        def on_step(index: int, metrics: StepMetrics) -> None:
            self.steps.append({**metrics, "perf/step_s": clock.lap_s()})
            after_step()
            every, taken = self.config.save_every_steps, index + 1
            if every and taken % every == 0 and taken < len(plan.steps):
                progress.save(self.steps)
            fault_point("update:after_step")
            self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), f"step {taken} of {len(plan.steps)}")

        hooks = Hooks(self.check_mismatch, on_step, self.on_rows)
        try:
            optimise(self.train_state, self.rollouts, plan, self.settings, references, hooks, taken=tuple(self.steps))
        except UpdateError as error:
            hint = "lower update.lr, or look at the rollouts and the rewards"
            raise StageError(f"the update was refused: {error}", hint=hint) from None
        return sum(int(self.rollouts.completions.lengths[rows].sum()) for rows in plan.steps[: len(self.steps)])

    def check_mismatch(self, trainer: Logprobs) -> None:
        """Gate: refuse rollouts whose recorded log-probs are not those of this policy."""
        self.mismatch_metrics = mismatch(self.rollouts, trainer)
        self.named = {"most_mismatched": self._id(row_differences(self.rollouts, trainer))}
        if self.mismatch_metrics.get("mismatch/outside_frac"):
            self.named["most_outside"] = self._id(num_outside(self.rollouts, trainer))
        sentence = update_breach({"metrics": self.mismatch_metrics, "summary": self.named}, self.config)
        if sentence:
            hint = "the sampler had other weights, another temperature or another tokenizer; roll out again"
            if self.rollouts.drawn is None and self.rows.drawing() is not None:
                hint = "the rows were sampled with top_p or top_k: update with truncation = masked"
            raise GateError(sentence, hint=hint)
        if "mismatch/logp_diff_mean" not in self.mismatch_metrics:
            raise GateError("no token has a finite log-prob of both sampler and trainer", hint="roll out again")

    def _id(self, values: torch.Tensor) -> str:
        """The rollout with the largest of values (N,)."""
        return str(self.rows.texts("rollout_id")[int(values.argmax())])

    def on_rows(self, num_rows: int) -> None:
        """Say that so many more rows went through a model."""
        self._rows_done += num_rows
        self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), f"{self._rows_done} rows computed")

    def _logprobs(self, model: PreTrainedModel) -> Logprobs:
        return all_logprobs(model, self.rollouts, self.config.micro_tokens, self.on_rows)

    def _reference(self) -> torch.Tensor | None:
        if not self.config.needs_reference:
            return None
        if self.config.reference == "ema":
            with self.train_state.averaged():
                return self._logprobs(self.train_state.model).logp
        if not self.ctx.inputs.get("reference"):
            raise BadInputError("the objective needs a reference policy (kl_coef is set)", hint="give --reference")
        policy = loaded_policy(self.ctx.store, self.ctx.one("reference"), self.config.dtype, self.config.device)
        refuse_unknown_tokens(self.rows, vocabulary(policy.model))
        return self._logprobs(policy.model).logp


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_s(self) -> float:
        """Seconds since the last lap."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def _rollouts(rows: ScoredRows, batch: ScoredBatch, config: UpdateConfig) -> Rollouts:
    return Rollouts(
        prompts=rows.tokens("prompt_tokens"),
        completions=rows.tokens("completion_tokens"),
        logprobs=rows.logprobs().values,
        temperature=torch.tensor(rows.texts("temperature"), dtype=torch.float32),
        advantage=update_advantage(config, batch),
        group=batch.group,
        reward=batch.reward,
        correct=batch.correct,
        drawn=rows.drawing() if config.truncation == "masked" else None,
    )


def _refuse_without_signal(
    rollouts: Rollouts, zero_std: Bools, uniform: dict[str, Any], config: UpdateConfig, settings: UpdateSettings
) -> None:
    learnable = rollouts.completions.lengths > 0
    if settings.step_advantage is not None:
        learnable &= ~torch.from_numpy(zero_std)[rollouts.group]
    elif not acts_everywhere(settings):
        learnable &= rollouts.advantage != 0
    if not bool(learnable.any()):
        raise GateError(
            f"all {len(zero_std)} groups have rewards without variance: there is nothing to learn from",
            hint="curate problems that are neither always nor never solved, or raise n",
        )
    if sentence := update_breach({"summary": uniform}, config):
        raise GateError(sentence, hint="curate problems of medium difficulty, or raise n")
