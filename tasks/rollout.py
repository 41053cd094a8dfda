"""Stage `rollout`: a plan and a policy become rollouts, shard by shard.

Which groups share a shard depends on the plan and the settings alone, so a resumed attempt makes the missing shards
exactly as an undisturbed one would.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from data.arrays import ints, pc
from data.errors import BadInputError, StageError
from data.schema import ROLLOUTS
from data.seeds import derive_seed
from data.store import Ref
from models.engines.base import Engine, EngineError, Finished, Request
from models.engines.hf import HfEngine
from models.policy import Policy, PolicyError, load_policy, prompt_text, prompt_tokens
from tasks.config import RolloutConfig, SampleConfig
from tasks.context import StageContext, StageResult
from tasks.faults import fault_point

NUM_SAMPLES = 16
BEAT_S = 1.0

_PROBLEM_COLUMNS = ["problem_id", "question", "messages"]
_REPORTED = ["rollout_id", "problem_id", "hint_level", "hint_text", "completion", "finish_reason"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """One row of the plan, ready to be sampled."""

    problem_id: str
    group_id: str
    n: int
    hint_level: int
    hint_text: str | None
    temperature: float
    max_tokens: int
    seed: int
    prompt: tuple[int, ...]

    def requests(self, top_p: float) -> list[Request]:
        """One request a sample, its seed derived from the group's."""
        return [
            Request(
                rollout_id=f"{self.group_id}:{sample}",
                prompt_tokens=self.prompt,
                seed=derive_seed(self.seed, sample),
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=top_p,
            )
            for sample in range(self.n)
        ]


def run(ctx: StageContext, config: RolloutConfig) -> StageResult:
    """Roll out every row of the plan; reports what was generated in this attempt and what there is in all."""
    policy = warm_policy(ctx, ctx.one("policy"), config)
    problems = {row["problem_id"]: row for row in ctx.table("problems", _PROBLEM_COLUMNS).to_pylist()}
    planned = ctx.table("plan").to_pylist()
    # All prompts before the first token: a row that cannot be used is told of now, not in the last shard.
    groups = [_group(row, problems, policy, config, ctx.seed) for row in planned]
    work = _Work(ctx, config, policy, HfEngine(policy, batch_rows=config.batch_rows), sum(g.n for g in groups))
    shards = list(divided(groups, config.shard_rows))
    started = time.perf_counter()
    reused = 0
    for index, shard in enumerate(shards):
        if f"part-{index:05d}" in ctx.out.done:
            reused += 1
            work.rows_done += sum(group.n for group in shard)
            continue
        fault_point("rollout:before_shard")
        ctx.out.write_table(work.shard(shard), index)
        fault_point("rollout:after_shard")
    if not shards:
        ctx.out.write_table(ROLLOUTS.arrow.empty_table())
    seconds = time.perf_counter() - started
    counts = {"tokens_generated": work.tokens_generated, "shards": len(shards), "shards_reused": reused}
    return _report(ctx, config, counts, seconds, problems)


def warm_policy(ctx: StageContext, ref: Ref, config: RolloutConfig) -> Policy:
    """The policy of a checkpoint: as a warm worker left it, or loaded; others are let go first."""
    key = f"policy/{ref.digest}/{config.dtype}"
    if key not in ctx.warm:
        for stale in [k for k in ctx.warm if k.startswith("policy/")]:
            del ctx.warm[stale]
        ctx.store.verify(ref)
        try:
            policy = load_policy(ctx.store.path(ref), config.dtype)
            _ = policy.end_tokens
        except PolicyError as error:
            raise BadInputError(str(error), hint="give a folder that transformers can load") from None
        ctx.warm[key] = policy
    return ctx.warm[key]


def divided(groups: Sequence[Group], shard_rows: int) -> Iterator[list[Group]]:
    """Whole groups in plan order, as many as fit in `shard_rows` (a larger group is a shard of its own)."""
    shard: list[Group] = []
    rows = 0
    for group in groups:
        if shard and rows + group.n > shard_rows:
            yield shard
            shard, rows = [], 0
        shard.append(group)
        rows += group.n
    if shard:
        yield shard


def _group(row: Row, problems: Mapping[str, Row], policy: Policy, config: RolloutConfig, seed: int) -> Group:
    """A checked row of the plan, what it leaves out filled in; BadInputError names the problem."""
    default = SampleConfig()
    name, level, n = row["problem_id"], row["hint_level"] or 0, row["n"]
    max_tokens = default.max_tokens if row["max_tokens"] is None else row["max_tokens"]
    temperature = default.temperature if row["temperature"] is None else row["temperature"]
    if n is None or n < 1 or max_tokens < 1 or not 0.0 <= temperature < float("inf"):
        raise BadInputError(
            f"the plan asks for n = {n}, max_tokens = {max_tokens}, temperature = {temperature} of problem {name}",
            hint="n and max_tokens are at least 1, temperature at least 0",
        )
    if name not in problems:
        raise BadInputError(f"the plan names problem {name}, which --problems does not have")
    return Group(
        problem_id=name,
        group_id=row["group_id"],
        n=n,
        hint_level=level,
        hint_text=row["hint_text"],
        temperature=temperature,
        max_tokens=max_tokens,
        seed=derive_seed(seed, name, config.round, level) if row["seed"] is None else row["seed"],
        prompt=_prompt(problems[name], row["hint_text"], max_tokens, policy),
    )


def _prompt(problem: Row, hint_text: str | None, max_tokens: int, policy: Policy) -> tuple[int, ...]:
    name = problem["problem_id"]
    if not ((problem["question"] or "").strip() or problem["messages"]):
        raise BadInputError(f"problem {name} has neither a question nor messages: its prompt would be empty")
    try:
        text = prompt_text(policy.tokenizer, problem["question"], problem["messages"], hint_text)
    except PolicyError as error:
        raise BadInputError(f"problem {name} has no prompt: {error}") from None
    tokens = tuple(prompt_tokens(policy.tokenizer, text))
    if not tokens:
        raise BadInputError(f"the prompt of problem {name} is empty: the tokenizer knows none of its characters")
    if policy.context_tokens - len(tokens) < max_tokens:
        raise BadInputError(
            f"the prompt of problem {name} has {len(tokens)} tokens; with max_tokens {max_tokens} "
            f"it does not fit the policy's {policy.context_tokens}",
            hint="lower max_tokens or drop the problem with --filter length",
        )
    return tokens


@dataclass
class _Work:
    """What is the same for every shard of one attempt, and how far it is."""

    ctx: StageContext
    config: RolloutConfig
    policy: Policy
    engine: Engine
    num_rows: int
    rows_done: int = 0
    tokens_generated: int = 0
    last_beat_s: float = field(default_factory=time.monotonic)

    def shard(self, groups: Sequence[Group]) -> pa.Table:
        """Generate the groups of one shard: a rollouts table in the order of the plan."""
        planned = [(group, sample) for group in groups for sample in range(group.n)]
        requests = [request for group in groups for request in group.requests(self.config.top_p)]
        before, finished = self.tokens_generated, dict[int, Finished]()
        try:
            for done in self.engine.generate(requests, lambda num_tokens: self.on_tokens(before + num_tokens)):
                finished[done.index] = done
                self.rows_done += 1
        except EngineError as error:
            raise StageError(str(error), hint="sample from an earlier checkpoint") from None
        self.tokens_generated = before + sum(len(done.tokens) for done in finished.values())
        self.beat(self.tokens_generated)
        rows = [self.row(*planned[i], requests[i], finished[i]) for i in range(len(requests))]
        return pa.Table.from_pylist(rows, schema=ROLLOUTS.arrow)

    def on_tokens(self, num_tokens: int) -> None:
        """Say how far the stage is, now and then."""
        if time.monotonic() - self.last_beat_s >= BEAT_S:
            self.beat(num_tokens)

    def beat(self, num_tokens: int) -> None:
        """Say how far the stage is."""
        self.last_beat_s = time.monotonic()
        text = f"{self.rows_done} of {self.num_rows} rollouts, {num_tokens} tokens"
        self.ctx.beat(self.rows_done / max(1, self.num_rows), text)

    def row(self, group: Group, sample: int, request: Request, done: Finished) -> dict[str, Any]:
        """One rollout as the table has it."""
        return {
            "rollout_id": request.rollout_id,
            "problem_id": group.problem_id,
            "group_id": group.group_id,
            "sample": sample,
            "round": self.config.round,
            "completion": self.policy.tokenizer.decode(done.tokens, skip_special_tokens=True),
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": done.tokens,
            "logprobs": done.logprobs,
            "finish_reason": done.finish_reason,
            "hint_level": group.hint_level,
            "hint_text": group.hint_text,
            "policy": self.ctx.one("policy").digest,
            "engine": self.engine.name,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
        }


def _report(
    ctx: StageContext, config: RolloutConfig, counts: dict[str, int], seconds: float, problems: Mapping[str, Row]
) -> StageResult:
    table = _rows_of_all_attempts(ctx)
    num_rows = table.num_rows
    lengths, levels = ints(table.column("num_tokens")), ints(table.column("hint_level"))
    cut = table.filter(pc.equal(table.column("finish_reason"), "length")).column("rollout_id")
    metrics = {
        "length/mean": float(lengths.mean()) if num_rows else 0.0,
        "length/max": float(lengths.max(initial=0)),
        "length/truncated_frac": len(cut) / max(1, num_rows),
        "data/hint_level_mean": float(levels.mean()) if num_rows else 0.0,
        "perf/tokens_per_s": counts["tokens_generated"] / max(seconds, 1e-9),
    }
    gate = ""
    if metrics["length/truncated_frac"] > config.max_truncated_frac:
        gate = (
            f"{metrics['length/truncated_frac']:.1%} of the completions were cut off by max_tokens, more than "
            f"max_truncated_frac = {config.max_truncated_frac:.1%} (first: {', '.join(cut.slice(0, 3).to_pylist())})"
        )
    shown = table.select(_REPORTED).slice(0, NUM_SAMPLES).to_pylist()
    samples = [{"question": _shown_question(problems[row["problem_id"]]), **row} for row in shown]
    summary = {"rows": num_rows, "tokens": int(lengths.sum()), **counts}
    return StageResult(metrics=metrics, summary=summary, samples=samples, gate=gate)


def _rows_of_all_attempts(ctx: StageContext) -> pa.Table:
    """What the report needs of every shard; one at a time, so that tokens and log-probs are never all in memory."""
    parts: list[pa.Table] = []
    for name in sorted(ctx.out.done):
        shard = ctx.out.table(name)
        num_tokens = pc.list_value_length(shard.column("completion_tokens"))
        parts.append(shard.select(_REPORTED).append_column("num_tokens", num_tokens))
    return pa.concat_tables(parts, promote_options="default")


def _shown_question(problem: Row) -> str:
    if problem["question"] is not None:
        return problem["question"]
    return "\n".join(str(message["content"]) for message in problem["messages"] or [])
