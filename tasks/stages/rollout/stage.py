"""Stage `rollout`: a plan and a policy become rollouts, shard by shard.

Which groups share a shard depends on the plan and the settings alone, so a resumed attempt makes the missing shards
as an undisturbed one would: to the bit where the engine promises that, with the same requests and seeds otherwise.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from gradus.data.arrays import ints, pc, positions
from gradus.data.curation.by_use import of_role, of_use
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.schema import PLAN, ROLLOUTS, read_shard
from gradus.models.engines.base import Engine, EngineError, Finished, Request
from gradus.models.policy import PromptSide
from gradus.tasks.config.redaction import check_key_variable
from gradus.tasks.config.rollout import COLUMNS, RESEEDS, RolloutConfig
from gradus.tasks.host.processes import fault_point
from gradus.tasks.runs.records import Sample
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.gates import tolerated_in_a_row
from gradus.tasks.stages.rollout.engines import open_engine, release_accelerator
from gradus.tasks.stages.rollout.groups import Asked, Planned
from gradus.tasks.stages.rollout.parents import in_order, parents_of
from gradus.tasks.stages.rollout.resumed import KEYS, OpenShard, account_of
from gradus.tasks.stages.rollout.rows import Given, given_texts, rollouts_table

NUM_NAMED = 3
BEAT_S = 1.0
SHARDS_AHEAD = 2
"""Shards a Ray worker has at once, so that it samples while the stage writes."""
RETRIES = 2
"""Number of times a failed request is repeated; a server's own are `server.retries`."""

_COUNTED = ["rollout_id", "hint_level", "finish_reason", "completion_tokens", "error"]
_SHOWN = ["rollout_id", "problem_id", "hint_level", "hint_text", "completion", "finish_reason"]

_Counts = tuple[Counter[str], int, list[str]]
"""Counts of the rows of a shard, the tokens of its longest, and the first that were cut off."""
Shard = tuple[int, int]
"""A range of groups of the plan."""

Begin = Callable[[Sequence[Request]], None]
"""Has an engine of several workers sample requests that `generate` will ask for."""


def run(ctx: StageContext, config: RolloutConfig) -> StageResult:
    """Roll out every row of the plan; report the counts of this attempt and of the whole artifact."""
    check_key_variable(config.server.api_key_variable, "server.api_key_variable")
    if config.ray.workers:
        from gradus.tasks.stages.rollout.ray_engine import ray_engine  # noqa: PLC0415 - for those who ask for it

        with ray_engine(ctx, ctx.one("policy"), config) as (workers, side):
            return _rolled_out(ctx, config, workers, side, workers.begin)
    engine, side = open_engine(ctx.store, ctx.warm, ctx.one("policy"), config)
    return _rolled_out(ctx, config, engine, side)


def _rolled_out(
    ctx: StageContext, config: RolloutConfig, engine: Engine, side: PromptSide | None, begin: Begin | None = None
) -> StageResult:
    # All prompts before the first token: a row that cannot be used is reported now, not in the last shard.
    plan, problems = (ctx.table(role, COLUMNS[role]) for role in ("plan", "problems"))
    given = given_texts(_of_call(plan, ctx), problems, side, config.prompt)
    plan, parents = given.plan, parents_of(ctx, given.plan, side)
    reseeds = RESEEDS in ctx.facts
    planned = Planned(plan, problems, side, config, ctx.seed, ctx.round, parents, reseeds=reseeds)
    policy = engine.name if side is None else ctx.one("policy").digest  # a server's model has no digest
    table = partial(
        rollouts_table,
        engine=engine.name,
        policy=policy,
        tokenizer=None if side is None else side.tokenizer,
        round_=ctx.round,
        origin=str(ctx.facts["origin"]) if "origin" in ctx.facts else None,
    )
    work = _Work(ctx, config, engine, table, planned, given)
    shards = planned.shards(config.shard_rows)
    started = time.perf_counter()
    work.make(shards, begin)
    if not shards:
        ctx.out.write_table(ROLLOUTS.arrow.empty_table())
    seconds = time.perf_counter() - started
    release_accelerator(ctx.warm, config)
    facts = {"shards": len(shards), "reproducible": "bitwise" if engine.reproducible else "seeded"}
    result = _report(ctx, facts, seconds, work)
    if not work.kept:
        return result
    there = [_names(ctx, index) for index in range(len(shards))]
    kept, found = (pa.concat_tables(parts, promote_options="default") for parts in (work.kept, there))
    resumed = account_of(plan, kept, found)
    return replace(result, attempt={**result.attempt, "resumed": resumed})


def _of_call(plan: pa.Table, ctx: StageContext) -> pa.Table:
    """Return the rows of a plan of this call's role and use; BadInputError if it has rows, and none of these."""
    role, use = str(ctx.facts.get("role", POLICY)), str(ctx.facts.get("use", LEARN))
    found = of_use(of_role(plan, role), use)
    if plan.num_rows and not found.num_rows:
        columns = (pc.coalesce(PLAN.column(plan, name), usual) for name, usual in (("role", POLICY), ("use", LEARN)))
        there = sorted(set(zip(*(column.to_pylist() for column in columns), strict=True)))
        listed = ", ".join(f"{role} ({use})" for role, use in there)
        raise BadInputError(
            f"the plan has no row of the role {role} and the use {use}; it has {listed}",
            hint="a training samples each role with the model that its recipe has for it",
        )
    return found


@dataclass(frozen=True)
class _Open:
    """A shard that is being sampled: its requests, the rows that were there, and the numbers of the missing ones."""

    index: int
    asked: Sequence[Asked]
    files: OpenShard
    kept: pa.Table
    missing: Sequence[int]


@dataclass
class _Work:
    """State that all shards of one attempt share, and its progress."""

    ctx: StageContext
    config: RolloutConfig
    engine: Engine
    table: Callable[[Sequence[tuple[Asked, Finished]]], pa.Table]
    """Makes rows of finished requests."""
    planned: Planned
    given: Given
    rows_done: int = 0
    shards_reused: int = 0
    tokens_generated: int = 0
    tokens_sampled: int = 0
    """Those of unfinished rollouts too."""
    num_failed: int = 0
    in_a_row: int = 0
    """Requests that failed since the last that was answered, in the order of the answers."""
    kept: list[pa.Table] = field(default_factory=list[pa.Table])
    """Names of the rollouts that earlier attempts left."""
    counted: dict[int, "_Counts"] = field(default_factory=dict[int, "_Counts"])
    """Counts of every shard for the report, by its index."""
    last_beat_s: float = field(default_factory=time.monotonic)

    def make(self, shards: Sequence[Shard], begin: Begin | None = None) -> None:
        """Write every shard that no earlier attempt finished; with `begin` two a worker are sampled at once."""
        begun: deque[_Open] = deque()
        for index, shard in enumerate(shards):
            if _name(index) in self.ctx.out.done:
                self.shards_reused += 1
                counts, *_ = self.counted[index] = _counts(self.ctx.out.table(_name(index), _COUNTED))
                self.num_failed += counts["failed"]
                self.rows_done += counts["rows"]
                self.kept.append(_names(self.ctx, index))
                continue
            fault_point("rollout:before_shard")
            begun.append(self.open(index, self.planned.asked(*shard, self.ctx.out.ref.digest)))
            if begin is not None and begun[-1].missing:
                begin([begun[-1].asked[i].request for i in begun[-1].missing])
            if begin is None or len(begun) == SHARDS_AHEAD * self.config.ray.workers:
                self.write(begun.popleft())
        while begun:
            self.write(begun.popleft())

    def open(self, index: int, asked: Sequence[Asked]) -> "_Open":
        """Begin a shard with the rows that an earlier attempt kept."""
        files = OpenShard(None if self.engine.reproducible else self.ctx.out.scratch, index, self.config.flush_s)
        kept = files.rows()
        if kept.num_rows:
            self.kept.append(kept)
        there = set(kept.column("rollout_id").to_pylist())
        stored_or_given = [each for each in asked if any(each.row[name] is not None for name in ("recall", "given"))]
        there |= {each.request.rollout_id for each in stored_or_given}
        self.rows_done += len(there)
        missing = [i for i, each in enumerate(asked) if each.request.rollout_id not in there]
        return _Open(index, asked, files, kept, missing)

    def write(self, shard: "_Open") -> None:
        """Make one shard of the rows that were there and the missing ones, in the order of the plan."""
        asked, files = shard.asked, shard.files
        finished: dict[int, Finished] = {}
        waiting: dict[int, Finished] = {}
        try:
            for i, done in self.finished([each.request for each in asked], shard.missing):
                finished[i] = done
                if done.finish_reason != "error":  # the next attempt shall ask for those again
                    waiting[i] = done
                if files.due:
                    files.keep(self.rows(asked, waiting))
                    waiting.clear()
                fault_point("rollout:after_row")
        finally:
            if not self.engine.reproducible:
                files.keep(self.rows(asked, waiting))
        table = self.rows(asked, finished)
        if len(shard.missing) < len(asked):
            given, recalled = (
                [(each.row, each.request.rollout_id) for each in asked if each.row[name] is not None]
                for name in ("given", "recall")
            )
            texts = self.given.rollouts(given, self.ctx.round)
            parts = [shard.kept, self.planned.parents.taken_up(recalled, self.ctx.round), texts, table]
            both = in_order(pa.concat_tables([part for part in parts if part.num_rows], promote_options="default"))
            ids = pa.array([each.request.rollout_id for each in asked])
            table = both.take(positions(ids, both.column("rollout_id")))
        self.ctx.out.write_table(table, shard.index)
        self.counted[shard.index] = _counts(table)
        files.close()
        fault_point("rollout:after_shard")

    def rows(self, asked: Sequence[Asked], finished: Mapping[int, Finished]) -> pa.Table:
        """The rows of finished requests, in the order of their numbers."""
        return self.table([(asked[i], finished[i]) for i in sorted(finished)])

    def finished(self, requests: Sequence[Request], missing: Sequence[int]) -> Iterator[tuple[int, Finished]]:
        """Every missing request once: sampled, or after the retries failed; StageError if too many fail."""
        failed: dict[int, Finished] = {}
        for _ in range(1 + RETRIES):
            failed = {}
            for i, done in self.sampled(requests, missing):
                if done.finish_reason == "error":
                    failed[i] = done
                else:
                    yield i, done
            missing = list(failed)
            if not failed:
                return
            self.in_a_row = 0  # the same requests follow
        self.num_failed += len(failed)
        if self.num_failed > self.config.max_failed_frac * self.planned.num_rows:
            first = next(iter(failed))
            raise StageError(
                f"{self.num_failed} of {self.planned.num_rows} requests failed, more than max_failed_frac = "
                f"{self.config.max_failed_frac:g} (first: {requests[first].rollout_id}: {failed[first].error})",
                hint="run the same command again: only missing rollouts are sampled",
            )
        yield from failed.items()

    def sampled(self, requests: Sequence[Request], chosen: Sequence[int]) -> Iterator[tuple[int, Finished]]:
        """The engine's answers to the chosen requests, by their index."""
        if not chosen:
            return
        asked = [requests[i] for i in chosen]
        counted_before = 0

        def on_tokens(num_tokens: int) -> None:
            nonlocal counted_before
            self.tokens_sampled += num_tokens - counted_before
            counted_before = num_tokens
            if time.monotonic() - self.last_beat_s >= BEAT_S:
                self.beat()

        try:
            for done in self.engine.generate(asked, on_tokens):
                self.tokens_generated += len(done.tokens)
                self.rows_done += done.finish_reason != "error"
                self.in_a_row = self.in_a_row + 1 if done.finish_reason == "error" else 0
                if self.in_a_row > tolerated_in_a_row(self.config.max_failed_frac, self.planned.num_rows):
                    raise StageError(
                        f"{self.in_a_row} requests failed one after another (the last, "
                        f"{asked[done.index].rollout_id}: {done.error})",
                        hint="see that the server answers and run the same command again: it asks for what is missing",
                    )
                yield chosen[done.index], done
        except EngineError as error:
            raise StageError(str(error), hint=error.hint) from None
        self.beat()

    def beat(self) -> None:
        """Say how far the stage is."""
        self.last_beat_s = time.monotonic()
        num_rows, num_tokens = self.planned.num_rows, max(self.tokens_sampled, self.tokens_generated)
        text = f"{self.rows_done} of {num_rows} rollouts, {num_tokens} tokens"
        self.ctx.beat(min(1.0, self.rows_done / max(1, num_rows)), text)


def _report(ctx: StageContext, facts: Mapping[str, int | str], seconds: float, work: _Work) -> StageResult:
    parts = [work.counted[index] for index in sorted(work.counted)]
    found = sum((counts for counts, _, _ in parts), Counter[str]())
    num_rows = max(1, found["rows"])
    metrics = {
        "length/mean": found["tokens"] / num_rows,
        "length/max": float(max((longest for _, longest, _ in parts), default=0)),
        "length/truncated_frac": found["truncated"] / num_rows,
        "data/hint_level_mean": found["hint_levels"] / num_rows,
    }
    rows: list[Sample] = []  # the first of the artifact, as they are shown to people
    for name in sorted(ctx.out.done):
        if len(rows) < NUM_SAMPLES:
            rows += ctx.out.table(name, _SHOWN).slice(0, NUM_SAMPLES - len(rows)).to_pylist()
    questions = work.planned.questions([str(row["problem_id"]) for row in rows])
    samples = [{"question": question, **row} for question, row in zip(questions, rows, strict=True)]
    summary = {
        "rows": found["rows"],
        "tokens": found["tokens"],
        **work.given.counts,
        "failed_requests": found["failed"],
        **({"completions_not_unicode": found["replaced"]} if found["replaced"] else {}),
        "first_truncated": [name for _, _, names in parts for name in names][:NUM_NAMED],
        **facts,
    }
    clock = {"perf/tokens_per_s": work.tokens_generated / max(seconds, 1e-9)}
    attempt = {
        "tokens_generated": work.tokens_generated,
        "shards_reused": work.shards_reused,
        "remarks": list(work.engine.remarks),
    }
    return StageResult(metrics=metrics, summary=summary, samples=samples, clock=clock, attempt=attempt)


def _counts(shard: pa.Table) -> _Counts:
    """Count the rows of one shard."""
    lengths, reasons = ints(pc.list_value_length(shard.column("completion_tokens"))), shard.column("finish_reason")
    cut = shard.column("rollout_id").filter(pc.equal(reasons, "length"))
    num_failed = int(pc.sum(pc.equal(reasons, "error")).as_py() or 0)
    counts = Counter(
        rows=shard.num_rows,
        tokens=int(lengths.sum()),
        failed=num_failed,
        replaced=shard.num_rows - shard.column("error").null_count - num_failed,
        truncated=len(cut),
        hint_levels=int(ints(shard.column("hint_level")).sum()),
    )
    return counts, int(lengths.max(initial=0)), cut.slice(0, NUM_NAMED).to_pylist()


def _names(ctx: StageContext, index: int) -> pa.Table:
    """The names of the rollouts of a shard."""
    path = ctx.out.folder / f"{_name(index)}.parquet"
    return read_shard(path, ROLLOUTS.restricted(KEYS), KEYS)


def _name(index: int) -> str:
    """A shard's name in the artifact."""
    return f"part-{index:05d}"
