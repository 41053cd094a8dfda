"""`gradus sql`: the views runs, stages, metrics and samples above the tables of the lake, of all runs or of some.

    with open_run(home, "demo-1a2b3c4d", print) as rows:
        rows.ask("select round, avg(reward) from sampled where purpose = 'train' group by round")

`gradus report` and `gradus browse` ask many queries of one run. `sampled` is a table in memory with one row for each
rollout that the run used, without its texts: some 200 bytes a row. Texts and tokens stay in the Parquet files and are
read by group. The other names are those of `gradus sql --run RUN`. Left out there: runs that share a lake.
"""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.queries import Answer, Relation, View, locked, select, without_excerpt
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Row as NamedRow
from gradus.tasks.config.settings import Home, memory_bytes
from gradus.tasks.inspect.lake_views import Say, artifact, tables, views
from gradus.tasks.inspect.token_pieces import Tokenizers
from gradus.tasks.preflight.checks import full_name
from gradus.tasks.runs.history import run_folder, run_folders
from gradus.tasks.runs.lineage import Lineage, Run
from gradus.tasks.runs.records import Report
from gradus.tasks.runs.run_settings import read_settings
from gradus.tasks.stages.context import with_clock
from gradus.tasks.stages.registry import installed

_NAME = rf"(?!{CHECKPOINTS})[a-z]+/[0-9a-f]{{4,64}}"
_PLAIN = re.compile(rf"""\b(from|join)\s+['"]?({_NAME})\b['"]?""", re.IGNORECASE)
"""An artifact where SQL has a table, in whichever quotes or none."""
_QUOTED = re.compile(f'"({_NAME})"')
_TEXT, _INT, _FLOAT, _TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("ms")
RUNS = pa.schema(
    [
        *(("run", _TEXT), ("verb", _TEXT), ("status", _TEXT), ("started", _TIME), ("seconds", _FLOAT)),
        *(("stages", _INT), ("reused", _INT), ("seed", _INT), ("settings", _TEXT)),
    ]
)
"""One row for each run; `started` in UTC, `seconds` of its stages, `settings` as JSON."""
STAGES = pa.schema(
    [
        *(("run", _TEXT), ("round", _INT), ("purpose", _TEXT), ("stage", _TEXT), ("attempt", _TEXT)),
        *(("status", _TEXT), ("started", _TIME), ("seconds", _FLOAT), ("output", _TEXT), ("artifact", _TEXT)),
        *(("error", _TEXT), ("pruned", _TEXT)),
    ]
)
"""One row for each attempt of a stage and for each reuse, which has no attempt; `pruned` is the day on which files of
a checkpoint were removed to make room."""
METRIC_ROWS = pa.schema(
    [
        *(("run", _TEXT), ("round", _INT), ("purpose", _TEXT), ("stage", _TEXT), ("step", _INT)),
        *(("name", _TEXT), ("value", _FLOAT), ("artifact", _TEXT)),
    ]
)
"""One row for each metric of each artifact that a run has; `step` is null for what the whole stage reported."""
Row = tuple[Any, ...]

COLUMNS = {
    "round": "round of the training; 0 before it",
    "purpose": "train, a wave (refill1), profile, eval, eval-SUITE, or the verb",
    "problem_id": "the problem",
    "domain": "its domain",
    "group_id": "rollouts compared with each other",
    "sample": "index within the group",
    "hint_level": "level of the hint shown; 0 for none",
    "tokens": "tokens of the completion",
    "finish_reason": "stop, length or error",
    "reward": "its reward; null if judging failed",
    "correct": "the verdict; null if there is none",
    "outcome": "correct, wrong, unparsed, timeout or error",
    "advantage": "mean over its tokens, where an update of its round took it",
    "weight": "mean factor of its tokens' losses in that update",
    "mismatch": "mean |trainer's - sampler's log-prob|, nats",
    "bare": "true if it is the policy's answer to the problem's own prompt: no hint, judge, parent, replay, given text",
    "origin": "who wrote it: expert, teacher ...; null: the policy",
    "use": "purpose of a row that is not learned from: judge, critique ...; null: learn",
    "change": "its problem's pass rate without hints, last round less first",
    "rollout_id": "the rollout, unique in the lake",
    "rollouts_artifact": "digest of its artifact",
}
"""The columns of `sampled`."""
ALWAYS = ("samples", "updates", "rollouts", "updated")
_UPDATED = pa.schema([("checkpoint", pa.string()), ("round", pa.int64())])
"""The checkpoints that a run's updates ended in, each with its round."""

_SAMPLED = """
create table sampled as
with took as (select u.*, c.round from updates u join updated c using (checkpoint)),
found as materialized (
    select s.round, s.purpose, s.problem_id, s.domain, s.group_id, s.sample, s.hint_level,
        s.completion_tokens as tokens, s.finish_reason, s.reward, s.correct, s.outcome,
        took.advantage, took.weight, took.mismatch, s.rollout_id, s.rollouts_artifact,
        s.hint_level = 0 and coalesce(s.origin, 'own') = 'own'
            and coalesce(s.use, s.parent, s.recall, s.own_gold) is null as bare,
        s.origin, s.use,
        s.purpose like 'eval%' as held_out
    from samples s left join took on took.rollout_id = s.rollout_id and took.round = s.round
        and s.purpose <> 'profile' and s.purpose not like 'eval%'
),
rates as (
    select problem_id, held_out, round, avg(correct::int) as rate from found where bare group by all
),
changes as (
    select problem_id, held_out, max_by(rate, round) - min_by(rate, round) as change
    from rates where rate is not null group by all
)
select {columns} from found left join changes using (problem_id, held_out)
"""
_ALONE = re.compile(r"^\s*(select|with|insert|update|delete|create|drop|copy|attach|pragma|set)\b", re.IGNORECASE)


@contextlib.contextmanager
def ask(home: Home, sql: str, run: str | None, say: Say, on_damage: OnDamage = refuse) -> Generator[Answer]:
    """Return the answer to a query over the lake, or over the artifacts that one run made or read.

    A query may name an artifact as a table. What it reads and is damaged, or missing although a run's journal has it,
    is damage. `say` gets a sentence for each artifact that is left out because its types are not its table's.
    """
    store = Store(home.lake)
    folders = run_folders(home.runs) if run is None else [run_folder(home.runs, run)]
    runs = [Run(folder, on_damage) for folder in folders]
    lineage = Lineage(store, runs, whole_lake=run is None, on_damage=on_damage)
    relations, views = relations_of(store, lineage, say)
    sql = _PLAIN.sub(r'\1 "\2"', sql)
    for name in _QUOTED.findall(sql):
        relations[name] = artifact(lineage, Ref.parse(full_name(home.lake, name)), say)
    memory = MemoryLimit(memory_bytes(), home.spill)
    with lineage.index.keeping(), select(relations, views, sql, memory) as answer:
        yield answer


def relations_of(store: Store, lineage: Lineage, say: Say) -> tuple[dict[str, Relation], dict[str, View]]:
    """Return the tables that a query may name, and the views above; `say` hears of each artifact left out."""
    remarks, runs = dict[str, None](), list(lineage.runs)

    def remark(text: str) -> None:  # once, however many views an artifact is left out of
        if text not in remarks:
            say(text)
        remarks[text] = None

    installed()  # their tables are the lake's
    hidden, above = views(lineage, remark)
    ours = {
        "runs": _computed(RUNS, lambda: map(_run, runs)),
        "stages": _computed(STAGES, lambda: _stages(store, runs)),
        "metrics": _computed(METRIC_ROWS, lambda: _metrics(lineage)),
    }
    return {**ours, **tables(lineage, remark), **hidden}, above


def _computed(schema: pa.Schema, rows: Callable[[], Iterable[NamedRow]]) -> Relation:
    def read() -> pa.Table:
        return pa.Table.from_pylist(list(rows()), schema=schema)

    return Relation(schema, read)


def _run(run: Run) -> NamedRow:
    settings = read_settings(run.folder, run.on_damage)
    ours = {"seed": settings.get("seed"), "settings": json.dumps(settings)}
    return {**run.brief, "started": _time(run.brief["started"]), **ours}


def _stages(store: Store, runs: list[Run]) -> Iterator[NamedRow]:
    for run in runs:
        for row in run.attempts:
            ref = Ref.parse(row["output"])
            pruned = store.pruned_on(ref) or None if ref.table == CHECKPOINTS else None
            facts = {"run": run.name, "started": _time(row["started"]), "artifact": ref.digest, "pruned": pruned}
            yield {**row, **facts}


def _metrics(lineage: Lineage) -> Iterator[NamedRow]:
    for run in lineage.runs:
        ended = [row for row in run.attempts if row["status"] in ("finished", "failed")]
        last = {row["output"]: row["attempt"] for row in ended}
        for row in lineage.current(run):
            ref, end = Ref.parse(row["output"]), run.story.ended.get(last.get(row["output"]) or "")
            report = report_of(lineage, ref)
            if end is not None:
                report = with_clock(report, end.get("clock", {}), end.get("step_clock", []))
            label = {"run": run.name, "round": row["round"], "purpose": row["purpose"], "stage": row["stage"]}
            for step, metrics in (*enumerate(report.get("steps", ())), (None, report.get("metrics", {}))):
                for name, value in metrics.items():
                    yield {**label, "step": step, "name": name, "value": value, "artifact": ref.digest}


def report_of(lineage: Lineage, ref: Ref) -> Report:
    """Return the report of an artifact; an empty one if it is damaged and that raises nothing."""
    paths = lineage.verified(ref, REPORT)
    return json.loads(paths[0].read_bytes()) if paths else {}


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


@dataclass(frozen=True)
class RunRows:
    """Queries to the rows of a run; any thread may ask, one at a time."""

    store: Store
    lineage: Lineage
    run: Run
    tokenizers: Tokenizers
    _connection: duckdb.DuckDBPyConnection
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query of ours; `values` stand for its question marks."""
        with self._turn:
            return self._connection.execute(sql, list(values)).fetchall()

    def records(self, sql: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query of ours by their column names."""
        with self._turn:
            found = self._connection.execute(sql, list(values))
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def one(self, sql: str, values: Sequence[object] = ()) -> Row:
        """Return the first row of a query that has one."""
        return self.ask(sql, values)[0]

    def matching(self, condition: str) -> str:
        """Return SQL for the rows of `sampled` that meet a user's condition, in brackets.

        The condition may name the columns of `sampled`; if it names others, those of `samples`, whose texts are then
        read, once. Raise UsageError if it is not a condition.
        """
        where = f"({condition}\n)"  # whatever it holds: the database is locked
        try:
            parsed = self._connection.extract_statements
            if not condition.strip() or _ALONE.match(condition) or len(parsed(f"select 1 where {where}")) != 1:
                raise UsageError(
                    "a filter is one condition, such as reward < 0.5 and tokens > 200",
                    hint="a whole query is for `gradus sql`",
                )
            try:
                # Every row is looked at: a conversion may fail on one of them alone.
                self.ask(f"select count(*) from sampled where {where}")  # noqa: S608 - as above
            except duckdb.BinderException:
                chosen = f"select rollout_id, round, purpose from samples where {where}"  # noqa: S608 - as above
                self.ask(f"create or replace table chosen as {chosen}")
                return "((rollout_id, round, purpose) in (select rollout_id, round, purpose from chosen))"
        except duckdb.Error as error:
            hint = f"the columns are {', '.join(COLUMNS)}"
            raise UsageError(f"the filter does not run: {without_excerpt(error)}", hint=hint) from None
        return where


@contextlib.contextmanager
def open_run(
    home: Home, run: str, say: Say, more: Sequence[str] = (), on_damage: OnDamage = refuse
) -> Generator[RunRows]:
    """Return the rows of a run, with `sampled` made; `more` names the other tables that will be asked for.

    Raise UsageError if there is no such run. A file that is not what its manifest says, or is missing, is damage. `say`
    gets a sentence for each artifact that is left out because of its types.
    """
    store, chosen = Store(home.lake), Run(run_folder(home.runs, run), on_damage)
    lineage = Lineage(store, [chosen], whole_lake=False, on_damage=on_damage)
    relations, views = relations_of(store, lineage, say)
    ended = [
        {"checkpoint": Ref.parse(row["output"]).digest, "round": row["round"]}
        for row in lineage.current(chosen)
        if row["stage"] == "update" and row["output"].startswith(f"{CHECKPOINTS}/")
    ]
    relations["updated"] = Relation.of(pa.Table.from_pylist(ended, schema=_UPDATED))
    named, memory = " ".join((*ALWAYS, *more)), MemoryLimit(memory_bytes(), home.spill)
    with lineage.index.keeping(), locked(relations, views, named, memory) as connection:
        connection.execute(_SAMPLED.format(columns=", ".join(COLUMNS)))
        yield RunRows(store, lineage, chosen, Tokenizers(store, on_damage), connection)
