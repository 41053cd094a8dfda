"""Stage `rollout`: a plan and a policy become rollouts, shard by shard.

Which groups share a shard depends on the plan and the settings alone, so a resumed attempt makes the missing shards
exactly as an undisturbed one would.
"""

import importlib.metadata
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from data.errors import BadInputError
from data.schema import ROLLOUTS
from data.seeds import derive_seed
from data.store import Ref
from models.engines.base import Finished, Request
from models.engines.hf import HfEngine
from models.policy import Policy, PolicyError, load_policy, prompt_text, prompt_tokens
from tasks.config import RolloutConfig
from tasks.context import StageContext, StageResult
from tasks.faults import fault_point

NUM_SAMPLES = 16

PlanRow = Mapping[str, Any]


def run(ctx: StageContext, config: RolloutConfig) -> StageResult:
    """Roll out every row of the plan; reports what was generated in this attempt and what there is in all."""
    policy = warm_policy(ctx, ctx.one("policy"), config)
    problems = {row["problem_id"]: row for row in ctx.table("problems", _PROBLEM_COLUMNS).to_pylist()}
    work = _Work(ctx, config, policy, problems)
    shards = list(_shards(ctx.table("plan").to_pylist(), config.shard_rows))
    started = time.perf_counter()
    generated, reused = 0, 0
    for index, groups in enumerate(shards):
        if f"part-{index:05d}" in ctx.out.done:
            reused += 1
            continue
        fault_point("rollout:before_shard")
        table = work.shard(groups)
        ctx.out.write_table(table, index)
        fault_point("rollout:after_shard")
        generated += _num_tokens(table)
        ctx.beat((index + 1) / len(shards), f"{index + 1} of {len(shards)} shards")
    if not shards:
        ctx.out.write_table(ROLLOUTS.arrow.empty_table())
    whole = pa.concat_tables([ctx.out.table(name) for name in sorted(ctx.out.done)], promote_options="default")
    seconds = time.perf_counter() - started
    counts = {"tokens_generated": generated, "shards": len(shards), "shards_reused": reused}
    return _report(whole, config, counts, seconds, problems)


_PROBLEM_COLUMNS = ["problem_id", "question", "messages"]


def warm_policy(ctx: StageContext, ref: Ref, config: RolloutConfig) -> Policy:
    """The policy of a checkpoint: as a warm worker left it, or loaded; others are let go."""
    key = f"policy/{ref.digest}/{config.dtype}"
    if key not in ctx.warm:
        ctx.store.verify(ref)
        try:
            policy = load_policy(ctx.store.path(ref), config.dtype)
        except PolicyError as error:
            raise BadInputError(str(error), hint="give a folder that transformers can load") from None
        for stale in [k for k in ctx.warm if k.startswith("policy/")]:
            del ctx.warm[stale]
        ctx.warm[key] = policy
    return ctx.warm[key]


@dataclass(frozen=True)
class _Work:
    """What is the same for every shard of one attempt."""

    ctx: StageContext
    config: RolloutConfig
    policy: Policy
    problems: Mapping[str, Mapping[str, Any]]

    def shard(self, groups: Sequence[PlanRow]) -> pa.Table:
        """Generate the groups of one shard: a rollouts table in the order of the plan."""
        requests: list[Request] = []
        plans: list[tuple[PlanRow, int]] = []
        for group in groups:
            tokens = self.prompt(group)
            for sample in range(group["n"]):
                requests.append(_request(group, sample, tokens, self.config.top_p))
                plans.append((group, sample))
        engine = HfEngine(self.policy, batch_rows=self.config.batch_rows)
        finished: dict[int, Finished] = {}
        for done in engine.generate(requests):
            finished[done.index] = done
            if len(finished) % 64 == 0:
                self.ctx.beat(0.0, f"{len(finished)} of {len(requests)} rollouts of this shard")
        rows = [self.row(plans[i], requests[i], finished[i]) for i in range(len(requests))]
        return pa.Table.from_pylist(rows, schema=ROLLOUTS.arrow)

    def prompt(self, group: PlanRow) -> tuple[int, ...]:
        """The prompt of a group in tokens; BadInputError names the problem whose prompt cannot be used."""
        problem = self.problems.get(group["problem_id"])
        if problem is None:
            raise BadInputError(f"the plan names problem {group['problem_id']}, which --problems does not have")
        text = prompt_text(self.policy.tokenizer, problem["question"], problem["messages"], group["hint_text"])
        tokens = tuple(prompt_tokens(self.policy.tokenizer, text))
        if not tokens:
            raise BadInputError(f"the prompt of problem {group['problem_id']} is empty")
        room = self.policy.context_tokens - len(tokens)
        if room < group["max_tokens"]:
            raise BadInputError(
                f"the prompt of problem {group['problem_id']} has {len(tokens)} tokens; with max_tokens "
                f"{group['max_tokens']} it does not fit the policy's {self.policy.context_tokens}",
                hint="lower max_tokens or drop it with --filter length",
            )
        return tokens

    def row(self, planned: tuple[PlanRow, int], request: Request, done: Finished) -> dict[str, Any]:
        """One rollout as the table has it."""
        group, sample = planned
        text = self.policy.tokenizer.decode(done.tokens, skip_special_tokens=True)
        return {
            "rollout_id": request.rollout_id,
            "problem_id": group["problem_id"],
            "group_id": group["group_id"],
            "sample": sample,
            "round": self.config.round,
            "completion": text,
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": done.tokens,
            "logprobs": done.logprobs,
            "finish_reason": done.finish_reason,
            "hint_level": group["hint_level"] or 0,
            "hint_text": group["hint_text"],
            "policy": self.ctx.one("policy").digest,
            "engine": _ENGINE,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
        }


_ENGINE = f"transformers {importlib.metadata.version('transformers')}"


def _request(group: PlanRow, sample: int, tokens: tuple[int, ...], top_p: float) -> Request:
    return Request(
        rollout_id=f"{group['group_id']}:{sample}",
        prompt_tokens=tokens,
        seed=derive_seed(group["seed"], sample),
        max_tokens=group["max_tokens"],
        temperature=group["temperature"],
        top_p=top_p,
    )


def _shards(plan: Sequence[PlanRow], shard_rows: int) -> Iterator[list[PlanRow]]:
    """Whole groups in plan order, as many as fit in `shard_rows` (a larger group is a shard of its own)."""
    shard: list[PlanRow] = []
    rows = 0
    for group in plan:
        if shard and rows + group["n"] > shard_rows:
            yield shard
            shard, rows = [], 0
        shard.append(group)
        rows += group["n"]
    if shard:
        yield shard


def _num_tokens(table: pa.Table) -> int:
    return sum(len(tokens) for tokens in table.column("completion_tokens").to_pylist())


def _report(
    table: pa.Table,
    config: RolloutConfig,
    counts: dict[str, int],
    seconds: float,
    problems: Mapping[str, Mapping[str, Any]],
) -> StageResult:
    lengths = np.array([len(tokens) for tokens in table.column("completion_tokens").to_pylist()] or [0])
    truncated = np.array([reason == "length" for reason in table.column("finish_reason").to_pylist()] or [False])
    levels = np.array(table.column("hint_level").to_pylist() or [0])
    metrics = {
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/truncated_frac": float(truncated.mean()),
        "data/hint_level_mean": float(levels.mean()),
        "perf/tokens_per_s": counts["tokens_generated"] / max(seconds, 1e-9),
    }
    shown = ["rollout_id", "problem_id", "hint_level", "hint_text", "completion", "finish_reason"]
    samples = [
        {"question": problems[row["problem_id"]]["question"], **row}
        for row in table.select(shown).slice(0, NUM_SAMPLES).to_pylist()
    ]
    gate = ""
    if metrics["length/truncated_frac"] > config.max_truncated_frac:
        cut = [row for row, is_cut in zip(table.column("rollout_id").to_pylist(), truncated, strict=True) if is_cut]
        gate = (
            f"{metrics['length/truncated_frac']:.1%} of the completions were cut off by max_tokens, more than "
            f"max_truncated_frac = {config.max_truncated_frac:.1%} (first: {', '.join(cut[:3])})"
        )
    summary = {"rows": table.num_rows, "tokens": int(lengths.sum()), **counts}
    return StageResult(metrics=metrics, summary=summary, samples=samples, gate=gate)
