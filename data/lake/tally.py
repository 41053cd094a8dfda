"""Score rows counted by DuckDB: a row for each problem, kind of rollout, reward and verdict.

    with MemoryLimit(2_000_000_000, folder).database() as database:
        tally = Tally(database, scores=store.files(scores), rollouts=store.files(rollouts))
        for rows in tally.counts(): ...     # whole problems, in the order of problem ids, rewards and verdicts

Whole numbers alone are summed here. A sum of rewards would depend on the order in which DuckDB adds, so on threads and
memory: who reads the rows adds rewards, in the order of their size. Grouping and sorting spill to the disk.
"""
# ruff: noqa: S608 - queries are put together of constants; names of files are parameters

import glob
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.arrays import runs
from gradus.data.lake.schema import EXPLAINED, OWN

if TYPE_CHECKING:  # slow to import, and modules that count nothing import this one
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

BARE, HELPED, OTHER, LOST = range(4)
"""Kinds of scored rollouts: the policy's own for the problem's own prompt; those with a hint or a wave's prompt; those
that count nowhere: given, continued, taken up again, asked another question with a gold of its own, or explaining an
answer that the prompt states; lost ones."""
WITHOUT_ROLLOUT = f"kind = {LOST}"
UNJUDGED = f"kind = {BARE} and correct is null"
BATCH_ROWS = 1 << 17

_SCORES = ("rollout_id", "problem_id", "reward", "correct", "file_index", "file_row_number")
_ROLLOUTS = ("rollout_id", "policy", "hint_level", "messages", "origin", "parent", "recall", "own_gold")
_OWN = f"coalesce(origin, '{OWN}') = '{OWN}' and recall is null"
_WITH_HELP = "hint_level > 0 or messages is not null"
_KIND = f"""case
    when recall is not null or parent is not null or own_gold is not null then {OTHER}
    when {_WITH_HELP} then if(origin = '{EXPLAINED}', {OTHER}, {HELPED})
    when {_OWN} then {BARE} else {OTHER} end"""


class Tally:
    """Scores in verified Parquet files, with the rollouts that they judge; without these each score is of a bare one.

    `num_scores` are its rows, and `policies` those of the policy's own rollouts, in alphabetical order.
    """

    def __init__(
        self, database: "DuckDBPyConnection", scores: Sequence[Path], rollouts: Sequence[Path] | None = None
    ) -> None:
        self._database = database
        self._files = {"scores": scores} if rollouts is None else {"scores": scores, "rollouts": rollouts}
        self.num_scores = sum(pq.read_metadata(path).num_rows for path in scores)
        self.policies: list[str] = []
        has_help = False
        if rollouts is not None:
            found = self._ask(
                f"select coalesce(list_sort(list(distinct policy) filter ({_OWN} and policy is not null)), []), "
                f"coalesce(bool_or({_WITH_HELP}), false) from ({self._read('rollouts', _ROLLOUTS)})"
            ).fetchall()
            self.policies, has_help = found[0]
        self._rows = self._scored(has_help)

    def counts(self) -> Iterator[pa.Table]:
        """Yield the rows: problem_id, kind, reward, correct, n, place, tokens, num_counted.

        `n` rows are alike, the first of them at `place` of all scores; where a rollout has help their prompts have
        `tokens` in all, and `num_counted` have any.
        """
        found = self._ask(
            "select problem_id, kind, reward, correct, count(*) as n, min(place) as place, "
            "sum(tokens)::bigint as tokens, count_if(tokens > 0) as num_counted "
            f"from ({self._rows}) group by problem_id, kind, reward, correct "
            "order by problem_id, kind, reward, correct"
        )
        return _whole_problems(found.to_arrow_reader(BATCH_ROWS))

    def rollout_ids(self, where: str, num: int) -> list[str]:
        """Return the first ids in the order of the scores that meet WITHOUT_ROLLOUT or UNJUDGED."""
        found = self._ask(f"select rollout_id from ({self._rows}) where {where} order by place limit {num:d}")
        return [name for (name,) in found.fetchall()]

    def _scored(self, has_help: bool) -> str:
        """Return the query of all scores, each with its place, the kind of its rollout and the tokens of its prompt."""
        scores = (
            "select rollout_id, problem_id, reward::double as reward, correct::boolean as correct, "
            f"file_index::bigint << 32 | file_row_number as place from ({self._read('scores', _SCORES)})"
        )
        if "rollouts" not in self._files:
            return f"select *, {BARE} as kind, null::bigint as tokens from ({scores})"
        tokens = "len(prompt_tokens)" if has_help else "null::bigint"
        columns = (*_ROLLOUTS, "prompt_tokens") if has_help else _ROLLOUTS
        rollouts = f"select rollout_id, {_KIND} as kind, {tokens} as tokens from ({self._read('rollouts', columns)})"
        return (
            f"select s.*, coalesce(r.kind, {LOST}) as kind, r.tokens "
            f"from ({scores}) s left join ({rollouts}) r on s.rollout_id = r.rollout_id"
        )

    def _read(self, role: str, columns: Sequence[str]) -> str:
        """Return the query of columns of all files, null where they have none; file names are parameters."""
        there = {"file_index", "file_row_number"}.union(*(pq.read_schema(path).names for path in self._files[role]))
        named = ", ".join(name if name in there else f"null as {name}" for name in columns)
        return f"select {named} from read_parquet(${role}, union_by_name = true)"

    def _ask(self, sql: str) -> "DuckDBPyRelation":
        asked = {role: paths for role, paths in self._files.items() if f"${role}" in sql}
        files = {role: [glob.escape(str(path)) for path in paths] for role, paths in asked.items()}
        return self._database.sql(sql, params=files)


def _whole_problems(batches: pa.RecordBatchReader) -> Generator[pa.Table]:
    """Yield the same rows in tables that end where a problem ends."""
    begun: list[pa.RecordBatch] = []
    for batch in batches:
        problem, ids = runs(batch.column("problem_id"))
        if last := int(np.searchsorted(problem, len(ids) - 1)):
            yield pa.Table.from_batches([*begun, batch.slice(0, last)])
            begun = []
        begun.append(batch.slice(last))
    yield pa.Table.from_batches(begun, schema=batches.schema)
