"""Stage `update`: scored rollouts and the policy that made them become the next policy.

A problem whose unhinted group failed whole and was tried again under a hint (GHPO, arXiv 2507.10628) is learnt from in
its last group alone: the failed ones carry no signal and are dropped.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.errors import BadInputError, GateError, StageError
from data.seeds import derive_seed
from data.store import Ref
from models.advantages import ADVANTAGES, zero_std_groups
from models.batch import ScoredBatch
from models.checkpoint import learner_bytes, restore_learner, restore_weights, weights_bytes, write_policy
from models.policy import Policy, PolicyError, load_policy
from models.update import Learner, Plan, Rollouts, Settings, UpdateError, mismatch, old_logprobs, optimise
from tasks.config import UpdateConfig
from tasks.context import StageContext, StageResult
from tasks.faults import fault_point

Row = Mapping[str, Any]
_ROLLOUT_COLUMNS = [
    "rollout_id",
    "problem_id",
    "group_id",
    "prompt_tokens",
    "completion_tokens",
    "logprobs",
    "temperature",
    "policy",
    "hint_level",
    "finish_reason",
]


def run(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take the optimiser steps of one update and write the checkpoint that they end in."""
    started = time.perf_counter()
    rows, replaced = judged_rows(ctx)
    batch = batch_of(rows)
    settings = _settings(config)
    learner, policy = _learner(ctx, settings)
    rollouts = _rollouts(rows, batch, config)
    zero_std = zero_std_groups(batch)
    _refuse_without_signal(rollouts, zero_std, config)
    old = old_logprobs(policy.model, rollouts, config.micro_tokens)
    off = mismatch(rollouts, old)
    _refuse_mismatch(off, config)
    steps = _optimise(ctx, config, settings, learner, rollouts, old, started)
    fault_point("update:before_checkpoint")
    _write(ctx, policy, learner)
    _keep_warm(ctx, policy, learner)
    metrics = {**_report(rows, batch, zero_std), **off, **steps[-1]}
    num_tokens = sum(map(len, rollouts.completions)) * config.epochs
    metrics["perf/tokens_per_s"] = num_tokens / (time.perf_counter() - started)
    summary = {
        "updates": len(steps),
        "tokens_trained": num_tokens,
        "groups": batch.num_groups,
        "zero_std_groups": int(zero_std.sum()),
        "replaced_groups": replaced,
    }
    return StageResult(metrics=metrics, summary=summary, steps=steps)


def judged_rows(ctx: StageContext) -> tuple[list[Row], int]:
    """Rollouts with their rewards, judged ones only, replaced groups dropped; and how many groups were replaced."""
    scores = {row["rollout_id"]: row for row in ctx.table("scores").to_pylist()}
    rows: list[dict[str, Any]] = []
    for row in ctx.table("rollouts", _ROLLOUT_COLUMNS).to_pylist():
        score = scores.get(row["rollout_id"])
        if score is None:
            raise BadInputError(f"rollout {row['rollout_id']} has no score", hint="run `gradus score` on it")
        rows.append({**row, "reward": score["reward"], "correct": score["correct"]})
    _refuse_other_policy(ctx, rows)
    if all(row["reward"] is None for row in rows):
        raise GateError("no rollout has a reward: every judgement failed", hint="see the scores' column `error`")
    kept, replaced = _last_tries(rows)
    return [row for row in kept if row["reward"] is not None and row["completion_tokens"]], replaced


def _last_tries(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Drop a problem's groups that another group with a higher hint level came after."""
    highest: dict[str, int] = {}
    for row in rows:
        highest[row["problem_id"]] = max(highest.get(row["problem_id"], 0), row["hint_level"] or 0)
    kept = [row for row in rows if (row["hint_level"] or 0) == highest[row["problem_id"]]]
    return kept, len({row["group_id"] for row in rows}) - len({row["group_id"] for row in kept})


def batch_of(rows: Sequence[Row]) -> ScoredBatch:
    """Rewards and group numbers of the rows."""
    numbers: dict[str, int] = {}
    group = [numbers.setdefault(row["group_id"], len(numbers)) for row in rows]
    reward = torch.tensor([row["reward"] for row in rows], dtype=torch.float64)
    if not bool(torch.isfinite(reward).all()):
        raise BadInputError("a reward is not finite", hint="correct the reward function and score again")
    return ScoredBatch(reward, torch.tensor(group, dtype=torch.int64))


def _rollouts(rows: Sequence[Row], batch: ScoredBatch, config: UpdateConfig) -> Rollouts:
    function = ADVANTAGES[config.advantage]
    advantage = function(batch, std_eps=config.std_eps) if config.advantage == "grpo" else function(batch)
    for row in rows:
        if row["logprobs"] is None or len(row["logprobs"]) != len(row["completion_tokens"]):
            raise GateError(
                f"rollout {row['rollout_id']} has no log-prob for each of its tokens",
                hint="update only from rollouts whose engine records them",
            )
    return Rollouts(
        prompts=[row["prompt_tokens"] for row in rows],
        completions=[row["completion_tokens"] for row in rows],
        logprobs=[row["logprobs"] for row in rows],
        temperature=torch.tensor([row["temperature"] for row in rows], dtype=torch.float32),
        advantage=advantage,
        group=batch.group,
        max_tokens=max(len(row["completion_tokens"]) for row in rows),
    )


def _optimise(
    ctx: StageContext,
    config: UpdateConfig,
    settings: Settings,
    learner: Learner,
    rollouts: Rollouts,
    old: Sequence[torch.Tensor],
    started: float,
) -> list[dict[str, float]]:
    plan = Plan.of(rollouts, settings, np.random.default_rng(derive_seed(ctx.seed, "update", learner.step)))
    reference = _reference(ctx, rollouts, config)
    progress = _Progress(ctx.out.scratch, learner)
    first, taken = progress.restore()

    def on_step(index: int, metrics: dict[str, float]) -> None:
        taken.append({**metrics, "perf/step_s": time.perf_counter() - started})
        if config.save_every_steps and (index + 1) % config.save_every_steps == 0:
            progress.save(index + 1)
        fault_point("update:after_step")
        ctx.beat((index + 1) / len(plan.steps), f"step {index + 1} of {len(plan.steps)}")

    learner.model.train()
    try:
        optimise(learner, rollouts, plan, settings, old=old, reference=reference, first=first, on_step=on_step)
    except UpdateError as error:
        raise StageError(f"the update was refused: {error}", hint="lower update.lr or look at the rollouts") from None
    finally:
        learner.model.eval()
    return taken


@dataclass
class _Progress:
    """State inside a long update: weights, optimiser, cursor and, last, the marker that makes them count."""

    folder: Path
    learner: Learner

    def save(self, done: int) -> None:
        """Keep the state after `done` steps."""
        folder = self.folder / f"step-{done:06d}"
        folder.mkdir(exist_ok=True)
        files = {"weights.safetensors": weights_bytes(self.learner), **learner_bytes(self.learner)}
        for name, content in files.items():
            (folder / name).write_bytes(content)
        digest = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        marker = folder / "done.tmp"
        marker.write_text(json.dumps(digest))
        marker.replace(folder / "done")

    def restore(self) -> tuple[int, list[dict[str, float]]]:
        """Go back to the newest whole state: steps already taken, and an empty list for the metrics to come."""
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            marker = folder / "done"
            if not marker.exists():
                continue
            expected: dict[str, str] = json.loads(marker.read_text())
            files = {name: (folder / name).read_bytes() for name in expected}
            if all(hashlib.sha256(files[name]).hexdigest() == value for name, value in expected.items()):
                restore_weights(self.learner, files["weights.safetensors"])
                restore_learner(self.learner, files)
                return int(folder.name.removeprefix("step-")), []
        return 0, []


def _learner(ctx: StageContext, settings: Settings) -> tuple[Learner, Policy]:
    """The policy in float32 with its optimiser: as this worker left it, or from disk."""
    ref = ctx.one("policy")
    warm = ctx.warm.pop("learner", None)
    if warm is not None and warm[0] == ref.digest and not any(ctx.out.scratch.iterdir()):
        _, learner, policy = warm
        for group in learner.optimizer.param_groups:
            group.update(betas=settings.betas, weight_decay=settings.weight_decay)
        return learner, policy
    policy = _load(ctx, ref)
    learner = Learner.new(policy.model, settings)
    folder = ctx.store.path(ref)
    if (folder / "state.json").exists():
        restore_learner(learner, {n: (folder / n).read_bytes() for n in ("state.json", "optimizer.safetensors")})
    return learner, policy


def _load(ctx: StageContext, ref: Ref) -> Policy:
    ctx.store.verify(ref)
    try:
        return load_policy(ctx.store.path(ref), "float32")
    except PolicyError as error:
        raise BadInputError(str(error), hint="give a folder that transformers can load") from None


def _reference(ctx: StageContext, rollouts: Rollouts, config: UpdateConfig) -> list[torch.Tensor] | None:
    if not config.kl_coef:
        return None
    if not ctx.inputs.get("reference"):
        raise BadInputError("kl_coef is set but there is no reference policy", hint="give --reference")
    return old_logprobs(_load(ctx, ctx.one("reference")).model, rollouts, config.micro_tokens)


def _write(ctx: StageContext, policy: Policy, learner: Learner) -> None:
    write_policy(policy, _empty(ctx.out.scratch / "policy"), ctx.out.write_file)
    for name, content in learner_bytes(learner).items():
        ctx.out.write_file(name, content)


def _keep_warm(ctx: StageContext, policy: Policy, learner: Learner) -> None:
    """Leave the new policy where this worker's next rollout and update find it, as they would on disk."""
    digest = ctx.out.ref.digest
    for stale in [key for key in ctx.warm if key.startswith("policy/")]:
        del ctx.warm[stale]
    ctx.warm["learner"] = (digest, learner, policy)
    for dtype in ("auto", "float32"):
        ctx.warm[f"policy/{digest}/{dtype}"] = policy


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
        kl_coef=config.kl_coef,
        entropy_coef=config.entropy_coef,
        lr=config.lr,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        betas=config.betas,
        max_grad_norm=config.max_grad_norm,
        epochs=config.epochs,
        minibatch_groups=config.minibatch_groups,
        micro_tokens=config.micro_tokens,
    )


def _refuse_other_policy(ctx: StageContext, rows: Sequence[Row]) -> None:
    expected = ctx.one("policy").digest
    odd = [row for row in rows if row["policy"] != expected]
    if odd:
        raise GateError(
            f"{len(odd)} of {len(rows)} rollouts were sampled from another policy than the one being updated "
            f"(first: {odd[0]['rollout_id']} from {odd[0]['policy']}, expected {expected})",
            hint="roll out with this policy, or update the one that they came from",
        )


def _refuse_without_signal(rollouts: Rollouts, zero_std: torch.Tensor, config: UpdateConfig) -> None:
    if not bool((rollouts.advantage != 0).any()):
        raise GateError(
            f"all {len(zero_std)} groups have rewards without variance: there is nothing to learn from",
            hint="curate problems that are neither always nor never solved, or raise n",
        )
    frac = float(zero_std.double().mean())
    if frac > config.max_zero_std_frac:
        raise GateError(
            f"{frac:.1%} of the groups have rewards without variance, more than max_zero_std_frac = "
            f"{config.max_zero_std_frac:.1%}",
            hint="curate problems of medium difficulty",
        )


def _refuse_mismatch(off: Mapping[str, float], config: UpdateConfig) -> None:
    difference = off.get("mismatch/logp_diff_mean", float("inf"))
    if difference > config.max_logp_diff:
        raise GateError(
            f"sampler and trainer disagree by {difference:.3f} nats a token on the same tokens, more than "
            f"max_logp_diff = {config.max_logp_diff:g}",
            hint="the sampler had other weights, another temperature or another tokenizer; roll out again",
        )


def _report(rows: Sequence[Row], batch: ScoredBatch, zero_std: torch.Tensor) -> dict[str, float]:
    lengths = np.array([len(row["completion_tokens"]) for row in rows])
    right = torch.zeros(batch.num_groups, dtype=torch.float64)
    right.index_add_(0, batch.group, torch.tensor([float(row["correct"] is not True) for row in rows]).double())
    return {
        "reward/mean": float(batch.reward.mean()),
        "reward/std": float(batch.reward.std(correction=0)),
        "reward/frac_zero_std_groups": float(zero_std.double().mean()),
        "reward/frac_all_right": float((right == 0).double().mean()),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/truncated_frac": float(np.mean([row["finish_reason"] == "length" for row in rows])),
        "data/hint_level_mean": float(np.mean([row["hint_level"] or 0 for row in rows])),
    }
