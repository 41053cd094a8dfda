"""Stage `update`: scored rollouts and the policy that made them become the next policy.

Which rows count is decided in tasks.update_rows; the mathematics is models.update. What is here: gates, the learner
from disk or from this worker's memory (the same bits), the checkpoint, the report.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from data.errors import BadInputError, CorruptArtifactError, GateError, StageError
from data.seeds import derive_seed
from models.advantages import ADVANTAGES, zero_std_groups
from models.batch import ScoredBatch
from models.checkpoint import LEARNER_FILES, STATE, CheckpointError, learner_bytes, restore_learner, write_policy
from models.devices import Device
from models.learner import Learner, Rollouts, Settings
from models.logprobs import vocabulary
from models.policy import Policy
from models.update import (
    Anchors,
    Hooks,
    Plan,
    RowLogprobs,
    RowValues,
    UpdateError,
    mismatch,
    num_outside,
    optimise,
    row_logprobs,
    worst_row,
)
from tasks.config import UpdateConfig
from tasks.context import StageContext, StageResult
from tasks.faults import fault_point
from tasks.gates import update_breach
from tasks.loading import ROOM, loaded_policy, memory_for, warm_key
from tasks.policies import refuse_training
from tasks.update_progress import Progress, StepMetrics
from tasks.update_rows import Judged, judged_rows, refuse_truncated, refuse_unknown_tokens

NUM_SAMPLES = 16
_RESUMABLE, _WORK = "steps", "policy"


def run(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take the optimiser steps of one update and write the checkpoint that they end in."""
    started = time.perf_counter()
    refuse_training(ctx.store, ctx.one("policy"))
    settings = _settings(config)
    rows = judged_rows(ctx, config.max_age)
    if config.correction != "none" and config.truncation == "refused":
        refuse_truncated(rows)
    batch = rows.batch()
    rollouts = _rollouts(rows, batch, config)
    zero_std = zero_std_groups(batch)
    _refuse_without_signal(rollouts, zero_std, _uniform(rows, batch, zero_std), config)
    learner, policy = _learner(ctx, settings, config.device)
    refuse_unknown_tokens(rows, vocabulary(policy.model))
    work = _Work(ctx, config, settings, learner, rows, rollouts)
    with memory_for(f"updating with {config.micro_tokens} tokens at once", "lower update.micro_tokens"):
        num_tokens = work.take_steps()
    fault_point("update:before_checkpoint")
    _write(ctx, policy, learner)
    _keep_warm(ctx, policy, learner, config.device)
    steps, step_clock = _without_clock(work.steps)
    metrics = {**_report(rows, batch, zero_std), **work.off, **_last_and_worst(steps)}
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
    settings: Settings
    learner: Learner
    rows: Judged
    rollouts: Rollouts
    off: dict[str, float] = field(default_factory=dict)
    """How sampler and trainer differ."""
    named: dict[str, str] = field(default_factory=dict)
    """The rows that differ most."""
    steps: list[StepMetrics] = field(default_factory=list)
    """Metrics of the steps taken, by this attempt or by an earlier one."""
    _rows_done: int = 0
    _rows_in_all: int = 1

    def take_steps(self) -> int:
        """Take every step that no earlier attempt took; gives the completion tokens trained on in all of them."""
        plan = Plan.of(self.rollouts, self.settings, self.learner.rng)
        num_rows = self.rollouts.num_rows
        self._rows_in_all = sum(map(len, plan.steps)) + num_rows * ((not plan.on_policy) + bool(self.config.kl_coef))
        old = None if plan.on_policy else self._logprobs(self.learner.model)
        if old is not None:
            self.look(old.as_drawn)
        anchors = Anchors(old, self._reference())
        progress = Progress(self.ctx.out.scratch / _RESUMABLE, self.learner)
        self.steps = progress.restore()
        clock = _Clock()

        def on_step(index: int, metrics: StepMetrics) -> None:
            self.steps.append({**metrics, "perf/step_s": clock.lap_s()})
            every, taken = self.config.save_every_steps, index + 1
            if every and taken % every == 0 and taken < len(plan.steps):
                progress.save(self.steps)
            fault_point("update:after_step")
            self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), f"step {taken} of {len(plan.steps)}")

        hooks = Hooks(self.look, on_step, self.on_rows)
        try:
            optimise(self.learner, self.rollouts, plan, self.settings, anchors, hooks, first=len(self.steps))
        except UpdateError as error:
            hint = "lower update.lr, or look at the rollouts and the rewards"
            raise StageError(f"the update was refused: {error}", hint=hint) from None
        return sum(len(self.rollouts.completions[i]) for rows in plan.steps for i in rows)

    def look(self, trainer: RowValues) -> None:
        """Gate: refuse rollouts whose recorded log-probs are not those of this policy."""
        self.off = mismatch(self.rollouts, trainer)
        self.named = {"most_mismatched": self._id(worst_row(self.rollouts, trainer))}
        if self.off.get("mismatch/outside_frac"):
            counts = num_outside(self.rollouts, trainer)
            self.named["most_outside"] = self._id(max(counts, key=counts.__getitem__))
        sentence = update_breach({"metrics": self.off, "summary": self.named}, self.config)
        if sentence:
            hint = "the sampler had other weights, another temperature or another tokenizer; roll out again"
            if self.rollouts.drawn is None and self.rows.drawing() is not None:
                hint = "the rows were sampled with top_p or top_k: update with truncation = masked"
            raise GateError(sentence, hint=hint)
        if "mismatch/logp_diff_mean" not in self.off:
            raise GateError("no token has a finite log-prob of both sampler and trainer", hint="roll out again")

    def _id(self, row: int) -> str:
        return str(self.rows.texts("rollout_id")[row])

    def on_rows(self, num_rows: int) -> None:
        """Say that so many more rows went through a model."""
        self._rows_done += num_rows
        self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), f"{self._rows_done} rows computed")

    def _logprobs(self, model: PreTrainedModel) -> RowLogprobs:
        return row_logprobs(model, self.rollouts, self.config.micro_tokens, self.on_rows)

    def _reference(self) -> RowValues | None:
        if not self.config.kl_coef:
            return None
        if not self.ctx.inputs.get("reference"):
            raise BadInputError("kl_coef is set but there is no reference policy", hint="give --reference")
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


def _rollouts(rows: Judged, batch: ScoredBatch, config: UpdateConfig) -> Rollouts:
    settings = {"std_eps": config.std_eps} if config.advantage == "grpo" else {}
    return Rollouts(
        prompts=rows.tokens("prompt_tokens"),
        completions=rows.tokens("completion_tokens"),
        logprobs=rows.logprobs(),
        temperature=torch.tensor(rows.texts("temperature"), dtype=torch.float32),
        advantage=ADVANTAGES[config.advantage](batch, **settings),
        group=batch.group,
        drawn=rows.drawing() if config.truncation == "masked" else None,
    )


def _learner(ctx: StageContext, settings: Settings, device: Device) -> tuple[Learner, Policy]:
    """The policy in float32 with its optimiser: as this worker left it, or from disk.

    Whatever the worker keeps loaded is let go first: the steps change weights in place, and should they be refused
    half-way, no later stage may take those weights for the old policy's.
    """
    ref = ctx.one("policy")
    warm = ctx.warm.pop("learner", None)
    for stale in [key for key in ctx.warm if key.startswith("policy/")]:
        del ctx.warm[stale]
    if warm is not None and warm[0] == (ref.digest, device):
        _, learner, policy = warm
        learner.adopt(settings)
        return learner, policy
    policy = loaded_policy(ctx.store, ref, "float32", device)
    learner = Learner.new(policy.model, settings, derive_seed(ctx.seed, "update"))
    folder = ctx.store.path(ref)
    if (folder / STATE).exists():
        _restore(learner, folder)
    return learner, policy


def _restore(learner: Learner, folder: Path) -> None:
    try:
        with memory_for("loading the optimiser's state", ROOM):
            restore_learner(learner, {name: (folder / name).read_bytes() for name in LEARNER_FILES})
    except (FileNotFoundError, CheckpointError) as error:
        raise CorruptArtifactError(
            f"{folder} is not a checkpoint that this version can go on from: {error}",
            hint=f"give a policy without {STATE} to begin with a fresh optimiser",
        ) from None


def _write(ctx: StageContext, policy: Policy, learner: Learner) -> None:
    write_policy(policy, _empty(ctx.out.scratch / _WORK), ctx.out.write_file)
    for name, content in learner_bytes(learner).items():
        ctx.out.write_file(name, content)


def _keep_warm(ctx: StageContext, policy: Policy, learner: Learner, device: Device) -> None:
    """Leave the new policy where this worker's next rollout and update find it, as they would on disk."""
    digest = ctx.out.ref.digest
    ctx.warm["learner"] = ((digest, device), learner, policy)
    for dtype in ("auto", "float32"):
        ctx.warm[warm_key(digest, dtype, device)] = policy


def _empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    return folder


def _settings(config: UpdateConfig) -> Settings:
    return Settings(
        loss=config.loss,
        loss_settings={"clip_low": config.clip_low, "clip_high": config.clip_high},
        aggregation=config.aggregation,
        length_tokens=config.length_tokens,
        kl_coef=config.kl_coef,
        entropy_coef=config.entropy_coef,
        correction=config.correction,
        correction_cap=config.correction_cap,
        lr=config.lr,
        warmup_steps=config.warmup_steps,
        decay_steps=config.decay_steps,
        weight_decay=config.weight_decay,
        betas=config.betas,
        max_grad_norm=config.max_grad_norm,
        epochs=config.epochs,
        minibatch_groups=config.minibatch_groups,
        micro_tokens=config.micro_tokens,
    )


def _refuse_without_signal(
    rollouts: Rollouts, zero_std: torch.Tensor, uniform: dict[str, Any], config: UpdateConfig
) -> None:
    with_tokens = torch.tensor([len(tokens) > 0 for tokens in rollouts.completions])
    if not bool(((rollouts.advantage != 0) & with_tokens).any()):
        raise GateError(
            f"all {len(zero_std)} groups have rewards without variance: there is nothing to learn from",
            hint="curate problems that are neither always nor never solved, or raise n",
        )
    if sentence := update_breach({"summary": uniform}, config):
        raise GateError(sentence, hint="curate problems of medium difficulty, or raise n")


def _uniform(rows: Judged, batch: ScoredBatch, zero_std: torch.Tensor) -> dict[str, Any]:
    """Groups, those without variance in their rewards, and a rollout of the first such group."""
    found: dict[str, Any] = {"groups": batch.num_groups, "zero_std_groups": int(zero_std.sum())}
    if found["zero_std_groups"]:
        found["first_zero_std"] = rows.texts("rollout_id")[int(torch.argmax(zero_std[batch.group].int()))]
    return found


def _oldest(rows: Judged) -> dict[str, Any]:
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


def _report(rows: Judged, batch: ScoredBatch, zero_std: torch.Tensor) -> dict[str, float]:
    not_right = torch.zeros(batch.num_groups, dtype=torch.float64)
    not_right.index_add_(0, batch.group, (batch.correct != 1).double())
    lengths = batch.length.double()
    return {
        "trained/reward_mean": float(batch.reward.mean()),
        "trained/reward_std": float(batch.reward.std(correction=0)),
        "trained/frac_zero_std_groups": float(zero_std.double().mean()),
        "trained/frac_all_right": float((not_right == 0).double().mean()),
        "trained/length_mean": float(lengths.mean()),
        "trained/length_max": float(lengths.max()),
        "trained/truncated_frac": float(np.mean([reason == "length" for reason in rows.texts("finish_reason")])),
        "data/age_mean": float(np.mean(rows.texts("age"))),
        "data/age_max": float(np.max(rows.texts("age"))),
        "trained/hint_level_mean": float(np.mean([level or 0 for level in rows.texts("hint_level")])),
    }


def _samples(rows: Judged, rollouts: Rollouts) -> list[dict[str, Any]]:
    """The rows that the update pulled hardest towards and away from."""
    order = torch.argsort(rollouts.advantage, stable=True).tolist()
    half = min(NUM_SAMPLES // 2, len(order) // 2)
    chosen = [*order[::-1][:half], *order[:half]]
    named = ["rollout_id", "problem_id", "hint_level", "reward", "correct", "completion"]
    table: list[dict[str, Any]] = rows.table.select(named).take(np.array(chosen, dtype=np.int64)).to_pylist()
    return [
        {**row, "advantage": float(rollouts.advantage[i]), "tokens": len(rollouts.completions[i])}
        for i, row in zip(chosen, table, strict=True)
    ]
