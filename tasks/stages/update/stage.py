"""Stage `update`: scored rollouts and the policy that made them become the next policy.

Which rows count is decided in gradus.tasks.stages.update.rows; the mathematics is gradus.models.training.update. What
is here: gates, the train state from disk or from this worker's memory (the same bits), the checkpoint, the report.
"""

import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from gradus.data.arrays import Bools
from gradus.data.errors import BadInputError, CorruptArtifactError, GateError, StageError
from gradus.data.metrics import zero_std_groups
from gradus.data.seeds import derive_seed
from gradus.models.devices import Device
from gradus.models.objectives.batch import ScoredBatch
from gradus.models.policy import Policy
from gradus.models.training.checkpoint import (
    STATE,
    TRAIN_STATE_FILES,
    CheckpointError,
    restore_train_state,
    train_state_bytes,
    write_policy,
)
from gradus.models.training.logprobs import Logprobs, vocabulary
from gradus.models.training.mismatch import mismatch, num_outside, row_differences
from gradus.models.training.passes import all_logprobs
from gradus.models.training.state import Rollouts, TrainState, UpdateSettings
from gradus.models.training.step import Hooks, ReferenceLogprobs, UpdateError, acts_everywhere
from gradus.models.training.update import StepPlan, optimise
from gradus.tasks.artifacts.loading import ROOM, LoadedPolicies, PolicyKey, loaded_policy, oom_as_stage_error
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.config.components import Chosen
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.faults import fault_point
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.gates import update_breach
from gradus.tasks.stages.update.resume_state import Progress, StepMetrics
from gradus.tasks.stages.update.rows import ScoredRows, judged_rows, refuse_truncated, refuse_unknown_tokens

NUM_SAMPLES = 16
_RESUMABLE, _WORK = "steps", "policy"


@dataclass(frozen=True)
class Trained:
    """A checkpoint that this worker has just made: its digest, device, train state and policy."""

    digest: str
    device: Device
    train_state: TrainState
    policy: Policy


@dataclass
class KeptTraining:
    """What a worker keeps of the last update for the next."""

    latest: Trained | None = None


def run(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take the optimiser steps of one update and write the checkpoint that they end in."""
    started = time.perf_counter()
    refuse_training(ctx.store, ctx.one("policy"))
    settings = _settings(config)
    rows = judged_rows(ctx, config.max_age)
    if config.correction is not None and config.truncation == "refused":
        refuse_truncated(rows)
    batch = rows.batch()
    rollouts = _rollouts(rows, batch, config)
    zero_std = zero_std_groups(batch.reward.numpy(), batch.group.numpy())
    _refuse_without_signal(rollouts, zero_std, _uniform(rows, batch, zero_std), config, settings)
    train_state, policy = _train_state(ctx, settings, config.device)
    refuse_unknown_tokens(rows, vocabulary(policy.model))
    work = _Work(ctx, config, settings, train_state, rows, rollouts)
    with oom_as_stage_error(f"updating with {config.micro_tokens} tokens at once", "lower update.micro_tokens"):
        num_tokens = work.take_steps()
    fault_point("update:before_checkpoint")
    _write(ctx, policy, train_state)
    _keep_warm(ctx, policy, train_state, config.device)
    steps, step_clock = _without_clock(work.steps)
    metrics = {**_report(rows, batch, zero_std), **work.mismatch_metrics, **_last_and_worst(steps)}
    summary = {
        "updates": len(work.steps),
        "tokens_trained": num_tokens,
        "replaced_groups": rows.replaced_groups,
        "unjudged_rows": rows.unjudged_rows,
        **_uniform(rows, batch, zero_std),
        **_oldest(rows),
        **work.named,
    }
    return StageResult(
        metrics,
        summary,
        _samples(rows, rollouts),
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

    def take_steps(self) -> int:
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
        if not self.ctx.inputs.get("reference"):
            raise BadInputError("the objective needs a reference policy (kl_coef is set)", hint="give --reference")
        policy = loaded_policy(self.ctx.store, self.ctx.one("reference"), "float32", self.config.device)
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
        advantage=_advantage(config, batch),
        group=batch.group,
        reward=batch.reward,
        correct=batch.correct,
        drawn=rows.drawing() if config.truncation == "masked" else None,
    )


def _train_state(ctx: StageContext, settings: UpdateSettings, device: Device) -> tuple[TrainState, Policy]:
    """The policy in float32 with its optimiser: as this worker left it, or from disk.

    Whatever the worker keeps loaded is let go first: the steps change weights in place, and should they be refused
    half-way, no later stage may take those weights for the old policy's.
    """
    ref = ctx.one("policy")
    ctx.warm.of(LoadedPolicies).clear()
    kept = ctx.warm.of(KeptTraining)
    found, kept.latest = kept.latest, None
    if found is not None and (found.digest, found.device) == (ref.digest, device):
        found.train_state.adopt(settings)
        return found.train_state, found.policy
    policy = loaded_policy(ctx.store, ref, "float32", device)
    train_state = TrainState.new(policy.model, settings, derive_seed(ctx.seed, "update"))
    folder = ctx.store.path(ref)
    if (folder / STATE).exists():
        _restore(train_state, folder)
    return train_state, policy


def _restore(train_state: TrainState, folder: Path) -> None:
    try:
        with oom_as_stage_error("loading the optimiser's state", ROOM):
            restore_train_state(train_state, {name: (folder / name).read_bytes() for name in TRAIN_STATE_FILES})
    except (FileNotFoundError, CheckpointError) as error:
        raise CorruptArtifactError(
            f"{folder} is not a checkpoint that this version can go on from: {error}",
            hint=f"give a policy without {STATE} to begin with a fresh optimiser",
        ) from None


def _write(ctx: StageContext, policy: Policy, train_state: TrainState) -> None:
    write_policy(policy, _empty(ctx.out.scratch / _WORK), ctx.out.write_file)
    for name, content in train_state_bytes(train_state).items():
        ctx.out.write_file(name, content)


def _keep_warm(ctx: StageContext, policy: Policy, train_state: TrainState, device: Device) -> None:
    """Leave the new policy where this worker's next rollout and update find it, as they would on disk."""
    digest = ctx.out.ref.digest
    ctx.warm.of(KeptTraining).latest = Trained(digest, device, train_state, policy)
    loaded = ctx.warm.of(LoadedPolicies)
    loaded.by_key[PolicyKey(digest, "auto", device)] = policy
    loaded.by_key[PolicyKey(digest, "float32", device)] = policy


def _empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    return folder


def _settings(config: UpdateConfig) -> UpdateSettings:
    """The components loaded, every other field of the same name as it is."""
    parts: list[Chosen] = [config.advantage, config.loss, *config.weights]
    components = {
        "loss": load(config.loss),
        "aggregation": load(config.aggregation),
        "correction": load(config.correction) if config.correction is not None else None,
        "weights": tuple(load(each) for each in config.weights),
        "step_advantage": load(config.advantage) if config.advantage.component.needs else None,
        "needs": frozenset(need for part in parts for need in part.component.needs),
        "acts_without_advantage": config.loss.component.acts_without_advantage,
    }
    plain = {each.name for each in fields(UpdateSettings)} - set(components)
    return UpdateSettings(**components, **{name: getattr(config, name) for name in plain})


def _advantage(config: UpdateConfig, batch: ScoredBatch) -> torch.Tensor:
    """The advantages (N,); 0 where every step makes its own."""
    if config.advantage.component.needs:
        return torch.zeros_like(batch.reward)
    return load(config.advantage)(batch)


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


def _uniform(rows: ScoredRows, batch: ScoredBatch, zero_std: Bools) -> dict[str, Any]:
    """Groups, those without variance in their rewards, and a rollout of the first such group."""
    found: dict[str, Any] = {"groups": batch.num_groups, "zero_std_groups": int(zero_std.sum())}
    if found["zero_std_groups"]:
        found["first_zero_std"] = rows.texts("rollout_id")[int(np.argmax(zero_std[batch.group.numpy()]))]
    return found


def _oldest(rows: ScoredRows) -> dict[str, Any]:
    """The largest age of a row, in updates, and the first row of that age."""
    ages = rows.texts("age")
    oldest = int(np.argmax(ages))
    return {"oldest_updates": int(ages[oldest]), "oldest": rows.texts("rollout_id")[oldest]}


def _without_clock(steps: list[StepMetrics]) -> tuple[list[StepMetrics], list[StepMetrics]]:
    """The metrics of every step, those measured with a clock apart."""
    return (
        [{name: value for name, value in step.items() if not name.startswith("perf/")} for step in steps],
        [{name: value for name, value in step.items() if name.startswith("perf/")} for step in steps],
    )


def _last_and_worst(steps: list[StepMetrics]) -> StepMetrics:
    """The last step's metrics; maxima over all steps."""
    return {name: max(s[name] for s in steps) if name.endswith("_max") else value for name, value in steps[-1].items()}


def _report(rows: ScoredRows, batch: ScoredBatch, zero_std: Bools) -> dict[str, float]:
    not_right = torch.zeros(batch.num_groups, dtype=torch.float64)
    not_right.index_add_(0, batch.group, (batch.correct != 1).double())
    lengths = batch.length.double()
    return {
        "trained/reward_mean": float(batch.reward.mean()),
        "trained/reward_std": float(batch.reward.std(correction=0)),
        "trained/frac_zero_std_groups": float(zero_std.mean()),
        "trained/frac_all_right": float((not_right == 0).double().mean()),
        "trained/length_mean": float(lengths.mean()),
        "trained/length_max": float(lengths.max()),
        "trained/truncated_frac": float(np.mean([reason == "length" for reason in rows.texts("finish_reason")])),
        "data/age_mean": float(np.mean(rows.texts("age"))),
        "data/age_max": float(np.max(rows.texts("age"))),
        "trained/hint_level_mean": float(np.mean([level or 0 for level in rows.texts("hint_level")])),
    }


def _samples(rows: ScoredRows, rollouts: Rollouts) -> list[dict[str, Any]]:
    """The rows that the update pulled hardest towards and away from."""
    order = torch.argsort(rollouts.advantage, stable=True).tolist()
    half = min(NUM_SAMPLES // 2, len(order) // 2)
    chosen = [*order[::-1][:half], *order[:half]]
    named = ["rollout_id", "problem_id", "hint_level", "reward", "correct", "completion"]
    table: list[dict[str, Any]] = rows.table.select(named).take(np.array(chosen, dtype=np.int64)).to_pylist()
    return [
        {**row, "advantage": float(rollouts.advantage[i]), "tokens": int(rollouts.completions.lengths[i])}
        for i, row in zip(chosen, table, strict=True)
    ]
