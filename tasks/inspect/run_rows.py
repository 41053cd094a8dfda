"""The rows of one run for many queries: what `gradus report` and `gradus browse` read, by the references of the run.

    with open_run(home, "demo-1a2b3c4d", print) as rows:
        rows.ask("select round, avg(reward) from sampled where purpose = 'train' group by round")

`sampled` is a table in memory with one row for each rollout that the run used, without its texts: some 200 bytes a row.
Texts and tokens stay in the Parquet files and are read by group. The other names are those of `gradus sql --run RUN`.
Left out: runs that share a lake; a query reads one run.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.queries import Relation, locked, without_excerpt
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.settings import Home, memory_bytes
from gradus.tasks.inspect.sql_views import relations_of, report_of
from gradus.tasks.runs.history import run_folder
from gradus.tasks.runs.lineage import Lineage, Run
from gradus.tasks.runs.records import Report

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


@dataclass(frozen=True)
class RunRows:
    """Queries to the rows of a run; any thread may ask, one at a time."""

    store: Store
    lineage: Lineage
    run: Run
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

    def report(self, ref: Ref) -> Report:
        """Return what a stage reported beside an artifact of the run."""
        return report_of(self.store, self.lineage, ref)

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
    home: Home, run: str, say: Callable[[str], None], more: Sequence[str] = (), on_damage: OnDamage = refuse
) -> Generator[RunRows]:
    """Return the rows of a run, with `sampled` made; `more` names the other tables that will be asked for.

    Raise UsageError if there is no such run. A file that is not what its manifest says is damage, and an artifact that
    the run has and is missing. `say` gets a sentence for each artifact that is left out because of its types.
    """
    folder = run_folder(home.runs, run)
    store, chosen = Store(home.lake), Run(folder, on_damage)
    lineage = Lineage(store, [chosen], whole_lake=False, on_damage=on_damage)
    relations, views = relations_of(store, lineage, say)
    relations["updated"] = Relation.of(_checkpoints(lineage, chosen))
    named, memory = " ".join((*ALWAYS, *more)), MemoryLimit(memory_bytes(), home.spill)
    with lineage.keeping(), locked(relations, views, named, memory) as connection:
        connection.execute(_SAMPLED.format(columns=", ".join(COLUMNS)))
        yield RunRows(store, lineage, chosen, connection)


def _checkpoints(lineage: Lineage, run: Run) -> pa.Table:
    """The checkpoints that the run's updates ended in, each with its round."""
    rows = [
        {"checkpoint": Ref.parse(row["output"]).digest, "round": row["round"]}
        for row in lineage.current(run)
        if row["stage"] == "update" and row["output"].startswith(f"{CHECKPOINTS}/")
    ]
    return pa.Table.from_pylist(rows, schema=_UPDATED)
