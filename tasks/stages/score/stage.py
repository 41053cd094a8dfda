"""The stage `score`: rollouts, of Gradus or another system, in; one judged row for each out.

    roles: rollouts (problem_id and completion at least), problems (optional: the gold answers)

Judging happens in disposable processes (gradus.models.judging.pool), which stay warm from round to round. Every shard
is a slice of the rollouts in their order; of a shard that an earlier attempt finished only the rows that failed are
judged again. A row that cannot be judged (no gold answer, a reward that raised, ran out of time or died) has a null
reward.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.components.marks import Mark
from gradus.components.rows import tokens_of
from gradus.data.answers import further_golds
from gradus.data.arrays import Ints, ints, nulls, pc
from gradus.data.errors import BadInputError, StageError, UsageError
from gradus.data.lake.schema import MARKS, OWN_GOLD, SCORES, cast_to_schema
from gradus.data.records import JsonObject
from gradus.data.unicode import whole
from gradus.models.judging.pool import FailingRewardError, HangingRewardError, JudgePool, JudgeStartError, TimedVerdict
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import failed
from gradus.models.rewards.combine import Score, combine, component_names
from gradus.models.sandbox import NEEDED, SandboxUnavailableError
from gradus.tasks.artifacts.policies import bounds_of
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.config.settings import usable_cpus
from gradus.tasks.host.processes import fault_point, printed, reward_log
from gradus.tasks.identity.pins import pinned_component
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.gates import tolerated_in_a_row
from gradus.tasks.stages.score.rewards import beside_problem, columns_of, decider, deciding_among, judging, spec_of
from gradus.tasks.stages.score.score_report import (
    FAILED,
    READ,
    chosen,
    failed_rows,
    metrics,
    plain,
    sample,
    summary,
)

MAX_JUDGES = 16
_MIN_TIMEOUTS = 16
"""Up to this many rows may time out before the stage is ended early; fewer cost little, and all rows are kept."""
_NAMED_ROWS = 4
_BEAT_S = 1.0
_TOKEN_COLUMNS = ("prompt_tokens", "completion_tokens", "logprobs")
"""Never read: no reward sees them."""
_PROBLEM_COLUMNS = ("answer", "question", "messages", "solution", "domain", "source", "extra")
_NEEDED = frozenset({*READ, "error", OWN_GOLD})
"""The columns of rollouts that judging and the report read, whatever the reward."""

Row = dict[str, Any]


class JudgePools(dict[str, JudgePool]):
    """The judges that a worker keeps running between two jobs, by reward and time limit."""


@dataclass
class _Work:
    """The rollouts of a stage, its rewards ready to judge, and the state kept from shard to shard."""

    ctx: StageContext
    config: ScoreConfig
    specs: list[RewardSpec]
    names: list[str]
    """Of the rewards, in the column `components`."""
    deciding: int | None
    pools: list[JudgePool]
    table: pa.Table
    """The rollouts; only those of one shard at a time become Python objects."""
    problems: Mapping[str, Row]
    timeouts_left: int
    """Number of further rows that may time out before the stage must exceed its limit."""
    latencies_s: list[float] = field(default_factory=list)
    failing: str = ""
    """The reward that was asked no more in this shard, and why."""

    def rows(self, index: Ints) -> list[Row]:
        """Return the rows at some places, each with its gold answer; columns that are null are left out."""
        rows: list[Row] = []
        for given in self.table.take(index).to_pylist():
            row = {name: value for name, value in given.items() if value is not None}
            row = beside_problem(row, self.problems.get(row["problem_id"], {}))
            if "answer" in row:
                row["answer"] = str(row["answer"])
            rows.append(row)
        return rows

    def shard(self, index: int) -> pa.Table:
        """Judge and write one shard; of one that an earlier attempt finished, the rows that failed."""
        name, start = f"part-{index:05d}", index * self.config.shard_rows
        done = cast_to_schema(self.ctx.out.table(name), SCORES) if name in self.ctx.out.done else None
        stop = min(start + self.config.shard_rows, self.table.num_rows)
        places = np.arange(start, stop) if done is None else start + failed_rows(done)
        table = done
        if len(places):
            found = self.judged(places)
            table = found if done is None else _replaced(done, places - start, found)
        assert table is not None
        self.timeouts_left -= table.column("outcome").to_pylist().count("timeout")
        if len(places):
            fault_point("score:before_shard")
            self.ctx.out.write_table(table, index)
            fault_point("score:after_shard")
        if self.failing:
            raise StageError(
                self.failing, hint="the rows that were judged are kept: the same command judges the others again"
            )
        return table

    @cached_property
    def tokens(self) -> pa.Table:
        """Completions with their tokens, needed only by rewards that mark parts of them."""
        return self.ctx.table("rollouts", ["completion", "completion_tokens"])

    def judged(self, places: Ints) -> pa.Table:
        """Judge the rows at some places by every reward, one after the other."""
        rows, start, num_rows = self.rows(places), int(places[0]), self.table.num_rows
        routes = [judging(self.config, self.specs, row) for row in rows]
        columns: list[dict[int, TimedVerdict]] = []
        for turn, (spec, pool) in enumerate(zip(self.specs, self.pools, strict=True)):
            mine = [at for at, places in enumerate(routes) if turn in places]

            def report(done: int, turn: int = turn) -> None:
                at = start + int((len(rows) * turn + done) / len(self.specs))
                self.ctx.beat(at / num_rows, f"{at} of {num_rows} rows judged")

            columns.append(dict(zip(mine, self.column(spec, pool, [rows[at] for at in mine], report), strict=True)))
        weights = [reward.weight for reward in self.config.rewards]
        said = [[column[at].verdict if at in column else None for column in columns] for at in range(len(rows))]
        decides = [deciding_among(self.specs, self.deciding, places) for places in routes]
        scores = [
            combine(self.names, weights, verdicts, deciding, self.config.correct_at)
            for verdicts, deciding in zip(said, decides, strict=True)
        ]
        table = _table(rows, scores, ",".join(spec.verifier for spec in self.specs))
        chosen = np.flatnonzero([bool(score.marks) for score in scores])
        if not len(chosen):
            return table
        found: list[Sequence[JsonObject] | None] = [None] * len(scores)
        of_rows = bounds_of(self.ctx.store, self.ctx.one("rollouts"), self.tokens.take(places[chosen]))
        for row, bounds in zip(chosen.tolist(), of_rows, strict=True):
            found[row] = _placed(scores[row].marks, bounds)
        return table.append_column(MARKS, pa.array(found, SCORES.type_of(MARKS)))

    def column(
        self, spec: RewardSpec, pool: JudgePool, rows: list[Row], report: Callable[[int], None]
    ) -> list[TimedVerdict]:
        """Return what one reward says of each row, those that failed judged again after each wait."""
        column = [TimedVerdict(failed(_obstacle(row, spec)), 0.0) for row in rows]
        able = wanted = [i for i, row in enumerate(rows) if not _obstacle(row, spec)]
        failing = ""
        for wait_s in (0.0, *(self.config.retry_wait_s * 2**attempt for attempt in range(self.config.retries))):
            if wait_s and wanted:
                _pause(wait_s, partial(report, len(able) - len(wanted)))
            try:
                found, failing = self._ask(pool, [_view(rows[i], spec) for i in wanted], report), ""
            except FailingRewardError as error:
                found, failing = error.verdicts, plain(str(error))
            except HangingRewardError as error:
                raise _given_up(spec, pool, error, [rows[wanted[at]] for at in error.rows]) from error
            for i, judged in zip(wanted, found, strict=True):
                column[i] = judged
            wanted = [i for i in wanted if column[i].verdict.outcome in FAILED]
        self.latencies_s.extend(column[i].seconds for i in able)
        self.failing = self.failing or failing
        return column

    def _ask(self, pool: JudgePool, rows: list[Row], report: Callable[[int], None]) -> Sequence[TimedVerdict]:
        """Return the outcome of each row; raise FailingRewardError if a reward of the user's was asked no more."""
        spec, limit = pool.spec, tolerated_in_a_row(self.config.max_error_frac, self.table.num_rows) + 1
        try:
            return pool.judge(rows, report, self.timeouts_left, limit if spec.is_user else math.inf)
        except SandboxUnavailableError as error:
            raise StageError(f"the reward {spec.name} needs a sandbox: {error}", hint=NEEDED) from error
        except JudgeStartError as error:
            if spec.is_user:
                hint = f"correct the file and run the same command again{printed(spec.name)}"
                raise BadInputError(plain(str(error)), hint=hint) from error
            raise StageError(plain(str(error)), hint="`gradus doctor` says what is missing") from error


def run(ctx: StageContext, config: ScoreConfig) -> StageResult:
    """Judge every rollout; raise StageError if not one of them could be judged."""
    if not config.rewards:
        raise UsageError("no reward was given", hint="name at least one, for example --reward math")
    specs = [_spec(pinned_component(reward), config.max_chars) for reward in config.rewards]
    table, problems = _read(ctx, config, specs)
    num_rows, names = table.num_rows, component_names(specs)
    deciding, pools = decider(config, specs), _warm_pools(ctx, specs, config.item_timeout_s)
    max_timeouts = max(_MIN_TIMEOUTS, math.floor(config.max_error_frac * num_rows))
    work = _Work(ctx, config, specs, names, deciding, pools, table, problems, max_timeouts)
    shards = [work.shard(index) for index in range(math.ceil(num_rows / config.shard_rows))]
    scores = pa.concat_tables(shards, promote_options="default")
    if scores.column("reward").null_count == num_rows:
        raise StageError(
            f"not one of {num_rows} rows could be judged; the first says: {plain(scores.column('error')[0].as_py())}",
            hint="correct the reward or the gold answers and run the same command again"
            + "".join(printed(spec.name) for spec in specs),
        )
    shown = chosen(scores)
    return StageResult(
        metrics=metrics(table, scores, names),
        summary=summary(scores),
        samples=[sample(*pair) for pair in zip(work.rows(shown), scores.take(shown).to_pylist(), strict=True)],
        clock={"verifier/latency_p95_s": float(np.quantile(late, 0.95))} if (late := work.latencies_s) else {},
    )


def _read(ctx: StageContext, config: ScoreConfig, specs: Sequence[RewardSpec]) -> tuple[pa.Table, dict[str, Row]]:
    """Return the rollouts and their problems: every column but tokens for a user's reward, else what ours read."""
    whole = any(spec.is_user for spec in specs)
    needed = _NEEDED.union(*(spec.columns for spec in specs), columns_of(config))
    names = [name for name in ctx.columns("rollouts") if name not in _TOKEN_COLUMNS and (whole or name in needed)]
    table = ctx.table("rollouts", names)
    if table.num_rows == 0:
        raise BadInputError("the rollouts are empty", hint="give a file with at least one completion")
    unnamed = np.flatnonzero(nulls(table.column("problem_id")))
    if len(unnamed):
        number = int(unnamed[0]) + 1
        raise BadInputError(f"row {number} of the rollouts has no problem_id", hint="every row needs one")
    golds = any(spec.needs_gold for spec in specs)
    return table, _problems(ctx, [name for name in _PROBLEM_COLUMNS if whole or name in needed], golds=golds)


def _spec(reward: RewardConfig, max_chars: int) -> RewardSpec:
    if not math.isfinite(reward.weight):
        raise UsageError(f"the weight of {reward.name} is {reward.weight}", hint="give a finite number")
    try:
        return spec_of(reward, max_chars)
    except ValueError as error:
        raise UsageError(str(error), hint="`gradus methods` lists the rewards") from error


def _warm_pools(ctx: StageContext, specs: Sequence[RewardSpec], item_timeout_s: float) -> list[JudgePool]:
    """The pools of these rewards, kept from an earlier job where it had the same; others are closed."""
    pools = ctx.warm.of(JudgePools)
    keys = [json.dumps([spec.to_json(), item_timeout_s], sort_keys=True) for spec in specs]
    for stale in set(pools) - set(keys):
        pools.pop(stale).close()
    num_workers = min(MAX_JUDGES, usable_cpus())
    for key, spec in zip(keys, specs, strict=True):
        if key not in pools:
            log = reward_log(spec.name)
            pools[key] = JudgePool(spec, num_workers=num_workers, item_timeout_s=item_timeout_s, log=log)
    return [pools[key] for key in keys]


def _problems(ctx: StageContext, columns: Sequence[str], *, golds: bool) -> dict[str, Row]:
    """Return the columns of each problem that are not null, and with `golds` the answers beside its gold."""
    if not ctx.inputs.get("problems"):
        return {}
    table = ctx.table("problems", ["problem_id", *columns])
    found = {
        row["problem_id"]: {k: v for k, v in row.items() if v is not None and k != "problem_id"}
        for row in table.to_pylist()
    }
    if golds:
        extra = ctx.table("problems", ["problem_id", "extra"])
        some = np.flatnonzero(ints(pc.count_substring_regex(extra.column("extra"), '"golds"')))
        for row in extra.take(pa.array(some)).to_pylist():
            found[row["problem_id"]]["golds"] = further_golds(row["extra"])
    return found


def _replaced(table: pa.Table, places: Ints, rows: pa.Table) -> pa.Table:
    """Return a table with other rows at some places."""
    order = np.arange(table.num_rows)
    order[places] = table.num_rows + np.arange(len(places))
    return pa.concat_tables([table, rows], promote_options="default").take(order)


def _pause(seconds: float, beat: Callable[[], None]) -> None:
    """Wait before rows are judged again; beat meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        beat()
        time.sleep(min(left, _BEAT_S))


def _given_up(spec: RewardSpec, pool: JudgePool, error: HangingRewardError, rows: list[Row]) -> StageError:
    """A sentence about a reward that hangs: which, for how long, on which rows."""
    which = ", ".join(str(row["rollout_id"]) for row in rows[-_NAMED_ROWS:])
    how = "one after another, and judged none" if error.in_a_row else "more than max_error_frac allows"
    return StageError(
        f"the reward {spec.name} did not answer within {pool.item_timeout_s:g} s on {len(rows)} rows, {how} "
        f"(the last: {which})",
        hint="fix the reward, or raise item_timeout_s or max_error_frac, and repeat the command",
    )


def _obstacle(row: Row, spec: RewardSpec) -> str:
    """Return the reason that no judge can take this row; empty if one can."""
    if "completion" not in row:
        return f"the request failed: {row['error']}" if row.get("error") else "no completion"
    return "no gold answer" if spec.needs_gold and not {"answer", "golds"} & row.keys() else ""


def _view(row: Row, spec: RewardSpec) -> Row:
    """Return the row that a reward sees: a user's function everything, ours no more than they read."""
    if spec.is_user:
        return {"answer": None, **row}
    more = {name: row[name] for name in (*spec.columns, *(["golds"] if spec.needs_gold else [])) if name in row}
    return {"completion": row["completion"], "answer": row.get("answer"), **more}


def _table(rows: list[Row], scores: list[Score], verifier: str) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "rollout_id": row["rollout_id"],
                "problem_id": row["problem_id"],
                "reward": score.reward,
                "correct": score.correct,
                "components": list(score.components.items()),
                "extracted": None if score.extracted is None else whole(score.extracted),
                "outcome": score.outcome or None,
                "error": whole(score.error) or None,
                "verifier": verifier,
            }
            for row, score in zip(rows, scores, strict=True)
        ],
        schema=SCORES.arrow,
    )


def _placed(marks: Sequence[Mark], bounds: tuple[Ints, Ints] | None) -> list[JsonObject]:
    """Return marks over tokens: a token belongs to a mark if it holds at least one of its characters.

    `bounds` are those of gradus.models.token_bounds; None for a completion of text alone, whose marks have no place.
    """
    found: list[JsonObject] = []
    for mark in marks:
        start, end = (None, None) if bounds is None else tokens_of(*bounds, mark.start, mark.end)
        label = None if mark.label is None else whole(mark.label)
        found.append({"name": whole(mark.name), "start": start, "end": end, "value": mark.value, "label": label})
    return found
