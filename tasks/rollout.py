"""Stage `rollout`: a plan and a policy become rollouts, shard by shard.

Which groups share a shard depends on the plan and the settings alone, so a resumed attempt makes the missing shards
as an undisturbed one would: to the bit where the engine promises that, with the same requests and seeds otherwise.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from data.arrays import ints, pc
from data.errors import StageError
from data.schema import ROLLOUTS
from models.engines.base import Engine, EngineError, Finished, Request
from models.policy import PromptSide
from tasks.config import RolloutConfig
from tasks.context import StageContext, StageResult
from tasks.engines import open_engine
from tasks.faults import fault_point
from tasks.groups import Group, divided, planned_groups
from tasks.open_shard import OpenShard, Rollout

NUM_SAMPLES = 16
BEAT_S = 1.0

_PROBLEM_COLUMNS = ["problem_id", "question", "messages"]
_COUNTED = ["rollout_id", "hint_level", "finish_reason"]
_SHOWN = ["rollout_id", "problem_id", "hint_level", "hint_text", "completion", "finish_reason"]

Row = Mapping[str, Any]


def run(ctx: StageContext, config: RolloutConfig) -> StageResult:
    """Roll out every row of the plan; reports what was generated in this attempt and what there is in all."""
    engine, side = open_engine(ctx, ctx.one("policy"), config)
    problems = {row["problem_id"]: row for row in ctx.table("problems", _PROBLEM_COLUMNS).to_pylist()}
    # All prompts before the first token: a row that cannot be used is told of now, not in the last shard.
    groups = planned_groups(ctx.table("plan").to_pylist(), problems, side, config, ctx.seed)
    work = _Work(ctx, config, side, engine, sum(g.n for g in groups))
    shards = list(divided(groups, config.shard_rows))
    started = time.perf_counter()
    reused = 0
    for index, shard in enumerate(shards):
        if f"part-{index:05d}" in ctx.out.done:
            reused += 1
            work.count_done(index, shard)
            continue
        fault_point("rollout:before_shard")
        work.write(index, shard)
        fault_point("rollout:after_shard")
    if not shards:
        ctx.out.write_table(ROLLOUTS.arrow.empty_table())
    seconds = time.perf_counter() - started
    counts = {"tokens_generated": work.tokens_generated, "shards": len(shards), "shards_reused": reused}
    promise = {
        "promise": "bits" if engine.reproducible else "requests",
        "failed_requests": work.num_failed,
        "remarks": list(engine.remarks),
    }
    return _report(ctx, config, {**counts, **promise}, seconds, problems)


@dataclass
class _Work:
    """What is the same for every shard of one attempt, and how far it is."""

    ctx: StageContext
    config: RolloutConfig
    side: PromptSide | None
    engine: Engine
    num_rows: int
    rows_done: int = 0
    tokens_generated: int = 0
    num_failed: int = 0
    last_beat_s: float = field(default_factory=time.monotonic)

    def count_done(self, index: int, groups: Sequence[Group]) -> None:
        """A shard that an earlier attempt finished."""
        reasons = self.ctx.out.table(f"part-{index:05d}").column("finish_reason")
        self.num_failed += int(pc.sum(pc.equal(reasons, "error")).as_py() or 0)
        self.rows_done += sum(group.n for group in groups)

    def write(self, index: int, groups: Sequence[Group]) -> None:
        """Make one shard, from what an earlier attempt kept of it and what is missing, in the order of the plan."""
        planned = [(group, sample) for group in groups for sample in range(group.n)]
        requests = [request for group in groups for request in group.requests(self.config)]
        folder = None if self.engine.reproducible else self.ctx.out.scratch
        opened = OpenShard(folder, index, self.config.flush_s)
        rows: dict[str, Rollout] = {row["rollout_id"]: row for row in opened.rows()}
        self.rows_done += len(rows)
        missing = [i for i, request in enumerate(requests) if request.rollout_id not in rows]
        try:
            for i, done in self.finished(requests, missing):
                row = self.row(*planned[i], requests[i], done)
                rows[row["rollout_id"]] = row
                if done.finish_reason != "error":  # the next attempt shall ask for those again
                    opened.add(row)
                fault_point("rollout:after_row")
        finally:
            opened.flush()
        ordered = [rows[request.rollout_id] for request in requests]
        self.ctx.out.write_table(pa.Table.from_pylist(ordered, schema=ROLLOUTS.arrow), index)
        opened.close()

    def finished(self, requests: Sequence[Request], missing: Sequence[int]) -> Iterator[tuple[int, Finished]]:
        """Every missing request once: sampled, or after the retries failed; StageError where too many fail."""
        failed: dict[int, Finished] = {}
        for _ in range(1 + self.config.retries):
            failed = {}
            for i, done in self.sampled(requests, missing):
                if done.finish_reason == "error":
                    failed[i] = done
                else:
                    yield i, done
            missing = list(failed)
            if not failed:
                return
        self.num_failed += len(failed)
        if self.num_failed > self.config.max_failed_frac * self.num_rows:
            first = next(iter(failed))
            raise StageError(
                f"{self.num_failed} of {self.num_rows} requests failed, more than max_failed_frac = "
                f"{self.config.max_failed_frac:g} (first: {requests[first].rollout_id}: {failed[first].error})",
                hint="repeat the command: only what is missing is asked for",
            )
        yield from failed.items()

    def sampled(self, requests: Sequence[Request], chosen: Sequence[int]) -> Iterator[tuple[int, Finished]]:
        """The engine's answers to the chosen requests, by their index."""
        before, tokens = self.tokens_generated, 0
        if not chosen:
            return
        asked = [requests[i] for i in chosen]
        try:
            for done in self.engine.generate(asked, lambda num_tokens: self.on_tokens(before + num_tokens)):
                tokens += len(done.tokens)
                self.tokens_generated = before + tokens
                self.rows_done += done.finish_reason != "error"
                yield chosen[done.index], done
        except EngineError as error:
            raise StageError(str(error), hint=error.hint) from None
        self.beat(self.tokens_generated)

    def on_tokens(self, num_tokens: int) -> None:
        """Say how far the stage is, now and then."""
        if time.monotonic() - self.last_beat_s >= BEAT_S:
            self.beat(num_tokens)

    def beat(self, num_tokens: int) -> None:
        """Say how far the stage is."""
        self.last_beat_s = time.monotonic()
        text = f"{self.rows_done} of {self.num_rows} rollouts, {num_tokens} tokens"
        self.ctx.beat(min(1.0, self.rows_done / max(1, self.num_rows)), text)

    def row(self, group: Group, sample: int, request: Request, done: Finished) -> Rollout:
        """One rollout as the table has it; what a failed request lacks, or an engine of text alone, is null."""
        if done.finish_reason == "error":
            sampled: dict[str, Any] = {"completion": None, "policy": self._policy()}
        elif self.side is None:
            sampled = {"completion": done.text or "", "policy": self._policy()}
        else:
            sampled = {
                "completion": self.side.tokenizer.decode(list(done.tokens), skip_special_tokens=True),
                "prompt_tokens": request.prompt_tokens,
                "completion_tokens": done.tokens,
                "logprobs": done.logprobs,
                "policy": self._policy(),
            }
        return {
            **sampled,
            "rollout_id": request.rollout_id,
            "problem_id": group.problem_id,
            "group_id": group.group_id,
            "sample": sample,
            "round": self.config.round,
            "finish_reason": done.finish_reason,
            "error": done.error or None,
            "hint_level": group.hint_level,
            "hint_text": group.hint_text,
            "engine": self.engine.name,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "seed": request.seed,
        }

    def _policy(self) -> str:
        """Who sampled: the checkpoint, or a model that a server has under some name."""
        return self.engine.name if self.side is None else self.ctx.one("policy").digest


def _report(
    ctx: StageContext, config: RolloutConfig, counts: dict[str, Any], seconds: float, problems: Mapping[str, Row]
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
    samples = [{"question": _shown_question(problems[row["problem_id"]]), **row} for row in _first_rows(ctx)]
    summary = {"rows": num_rows, "tokens": int(lengths.sum()), **counts}
    return StageResult(metrics=metrics, summary=summary, samples=samples, gate=gate)


def _rows_of_all_attempts(ctx: StageContext) -> pa.Table:
    """What the report needs of every row; read shard by shard, so that texts and tokens are never all in memory."""
    parts: list[pa.Table] = []
    for name in sorted(ctx.out.done):
        shard = ctx.out.table(name)
        num_tokens = pc.list_value_length(shard.column("completion_tokens"))
        parts.append(shard.select(_COUNTED).append_column("num_tokens", num_tokens))
    return pa.concat_tables(parts, promote_options="default")


def _first_rows(ctx: StageContext) -> list[dict[str, Any]]:
    """The first rows of the artefact, as they are shown to people."""
    rows: list[dict[str, Any]] = []
    for name in sorted(ctx.out.done):
        rows += ctx.out.table(name).select(_SHOWN).slice(0, NUM_SAMPLES - len(rows)).to_pylist()
        if len(rows) >= NUM_SAMPLES:
            break
    return rows


def _shown_question(problem: Row) -> str:
    if problem["question"] is not None:
        return problem["question"]
    return "\n".join(str(message["content"]) for message in problem["messages"] or [])
