"""What `gradus sql` shows of the lake: the tables with ids that are unique in it, and the view `samples`.

`rollouts` and `scores` show every id with the beginning of its artifact's digest, also those of files that users
bring and of lakes whose ids repeat between artifacts; so a join on `rollout_id` pairs a rollout with its own scores.
`samples` is one row for each rollout that a run used, with the scores that the same run used: a rollouts artifact that
was scored twice, or is used by two runs, doubles no row of a run. Which run used what is handed in (`USED`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from gradus.data.lake.queries import Relation, View
from gradus.data.lake.schema import CHECKPOINTS, KEY_DIGITS, ROWS_FILE, TABLES, UPDATES, misfit
from gradus.data.lake.store import Ref, Store

USED = pa.schema(
    [
        ("run", pa.string()),
        ("round", pa.int64()),
        ("purpose", pa.string()),
        ("rollouts", pa.string()),
        ("scores", pa.string()),
        ("problems", pa.string()),
    ]
)
"""Digests of the rollouts that a run used, of their scores and their problems; a null run where no run names them."""

Say = Callable[[str], None]

BATCH_ROWS = 1 << 12
"""Rows that are decoded together."""
_JUDGED = "rollouts_artifact"
_ADDED = ("artifact", _JUDGED)


class _Frugal(ds.FileSystemDataset):  # pyright: ignore[reportUntypedBaseClass] - pyarrow ships no types
    """A dataset whose scanner, which DuckDB asks for, reads one shard ahead.

    Four shards and sixteen batches, Arrow's own choice, are 300 MB more for shards of 100,000 rollouts, and no faster.
    """

    def scanner(self, **options: object) -> ds.Scanner:
        """Return a scanner; DuckDB names columns and filter."""
        return super().scanner(**options, batch_size=BATCH_ROWS, batch_readahead=4, fragment_readahead=1)


class Lake(Protocol):
    """Which artifacts a query may read; asked only for what the query names."""

    def artifacts(self, table: str) -> Sequence[Ref]:
        """The finished artifacts of a table."""
        ...

    def judged(self) -> Mapping[str, str]:
        """Digests of scores and of the rollouts that they judge."""
        ...

    def used(self) -> pa.Table:
        """Rows of the schema USED."""
        ...


def tables(store: Store, lake: Lake, say: Say) -> dict[str, Relation]:
    """Every table of the lake; `say` hears which artifacts are left out of it."""
    none: Mapping[str, str] = {}

    def relation(name: str) -> Relation:
        def read() -> ds.Dataset:
            return _rows(name, _fitting(store, lake.artifacts(name), say), lake.judged() if name == "scores" else none)

        source = {"rollouts": "artifact", "scores": _JUDGED}.get(name)
        projection = f"* replace ({_unique('rollout_id', source)} as rollout_id)" if source else "*"
        return Relation(_known(name), read, projection)

    return {
        **{name: relation(name) for name in TABLES},
        "updates": Relation(_updates_schema(), partial(_updates, store, lake)),
    }


def _updates_schema() -> pa.Schema:
    return UPDATES.arrow.append(pa.field("checkpoint", pa.string()))


def _updates(store: Store, lake: Lake) -> ds.Dataset:
    """What updates did with their rows, each with the digest of the checkpoint that it ended in."""
    parquet, disk = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = [
        parquet.make_fragment(str(path), disk, partition_expression=ds.field("checkpoint") == ref.digest)
        for ref in lake.artifacts(CHECKPOINTS)
        if (path := store.file(ref, ROWS_FILE)) is not None
    ]
    return ds.FileSystemDataset(fragments, _updates_schema(), parquet, filesystem=disk)


def samples(store: Store, lake: Lake, say: Say) -> tuple[dict[str, Relation], View]:
    """The view `samples`, and the relations that it alone reads."""

    def relation(name: str) -> Relation:
        def read() -> ds.Dataset:
            digests = sorted({digest for digest in lake.used().column(name).to_pylist() if digest})
            return _rows(name, _fitting(store, [Ref(name, digest) for digest in digests], say), {})

        return Relation(_known(name), read)

    hidden = {f"_{name}": relation(name) for name in ("rollouts", "scores", "problems")}
    return {**hidden, "_used": Relation(USED, lake.used)}, View(("_used", *hidden), _samples)


def _known(name: str) -> pa.Schema:
    known = TABLES[name].arrow.append(pa.field("artifact", pa.string()))
    return known.append(pa.field(_JUDGED, pa.string())) if name == "scores" else known


def _unique(name: str, digest: str) -> str:
    """The id as an SQL expression; as it is where it begins with the digest already, or there is none."""
    key = f"{digest}[:{KEY_DIGITS}] || ':'"
    return f"case when {digest} is null or starts_with({name}, {key}) then {name} else {key} || {name} end"


def _fitting(store: Store, refs: Sequence[Ref], say: Say) -> dict[Ref, list[tuple[Path, pa.Schema]]]:
    """The verified shards of the artifacts whose types are those of their table; the others are named.

    They are older than the check at the door, or made by hand.
    """
    found: dict[Ref, list[tuple[Path, pa.Schema]]] = {}
    for ref in refs:
        try:
            shards = [(path, pq.read_schema(path)) for path in store.files(ref)]
            odd = next(filter(None, (misfit(schema, TABLES[ref.table]) for _, schema in shards)), "")
        except pa.ArrowInvalid:
            shards, odd = [], "it holds a file that is no Parquet"
        if odd:
            say(f"{ref} is left out: {odd}")
        else:
            found[ref] = shards
    return found


def _rows(name: str, found: Mapping[Ref, list[tuple[Path, pa.Schema]]], judged: Mapping[str, str]) -> ds.Dataset:
    """The verified shards of the artifacts, each with its digest as a constant column.

    Columns that an older file lacks are null; those that are not ours come after the known ones.
    """
    parquet, disk = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    schemas, fragments = [_known(name)], []
    for ref, shards in found.items():
        source = ds.field("artifact") == ref.digest
        if ref.digest in judged:
            source &= ds.field(_JUDGED) == judged[ref.digest]
        for path, schema in shards:
            schemas.append(schema)
            fragments.append(parquet.make_fragment(str(path), disk, partition_expression=source))
    return _Frugal(fragments, _merged(schemas), parquet, filesystem=disk)


def _merged(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns; one that two files have with types that do not go together is text, or left out if it is nested."""
    fields: dict[str, list[pa.Field]] = {}
    for schema in schemas:
        for field in schema:
            fields.setdefault(field.name, []).append(field.remove_metadata())
    merged = [_field(name, same if name not in _ADDED else same[:1]) for name, same in fields.items()]
    return pa.schema([field for field in merged if field is not None])


def _field(name: str, same: Sequence[pa.Field]) -> pa.Field | None:
    try:
        alone = [pa.schema([field]) for field in same]
        return pa.unify_schemas(alone, promote_options="permissive").field(0)
    except pa.ArrowTypeError:
        nested = any(pa.types.is_nested(field.type) for field in same)
        return None if nested else pa.field(name, pa.string())


def _samples(relations: Mapping[str, duckdb.DuckDBPyRelation]) -> duckdb.DuckDBPyRelation:
    rollouts, problems = relations["_rollouts"], relations["_problems"]
    own = {name: f"_rollouts.{name}::varchar" for name in ("question", "answer", "domain") if name in rollouts.columns}
    asked = "coalesce(_problems.question, _problems.messages[-1].content"
    columns = {
        "run": "_used.run",
        "round": "_used.round",
        "purpose": "_used.purpose",
        "problem_id": "_rollouts.problem_id",
        "question": ", ".join([asked, *([own["question"]] if "question" in own else [])]) + ")",
        "domain": _first("_problems.domain", own.get("domain")),
        "answer": _first("_problems.answer", own.get("answer")),
        "group_id": "_rollouts.group_id",
        "sample": "_rollouts.sample",
        "hint_level": "coalesce(_rollouts.hint_level, 0)",
        "completion": "_rollouts.completion",
        "completion_tokens": "len(_rollouts.completion_tokens)",
        "finish_reason": "_rollouts.finish_reason",
        "reward": "_scores.reward",
        "correct": "_scores.correct",
        "outcome": "_scores.outcome",
        "parts": "_scores.components",
        "extracted": "_scores.extracted",
        "error": "coalesce(_scores.error, _rollouts.error)",
        "verifier": "_scores.verifier",
        "policy": "_rollouts.policy",
        "temperature": "_rollouts.temperature",
        "rollout_id": _unique("_rollouts.rollout_id", "_rollouts.artifact"),
        "rollouts_artifact": "_used.rollouts",
        "scores_artifact": "_used.scores",
    }
    return (
        relations["_used"]
        .join(rollouts, "_rollouts.artifact = _used.rollouts")
        .join(
            relations["_scores"],
            "_scores.artifact = _used.scores and _scores.rollout_id = _rollouts.rollout_id",
            how="left",
        )
        .join(
            problems,
            "_problems.artifact = _used.problems and _problems.problem_id = _rollouts.problem_id",
            how="left",
        )
        .project(", ".join(f"{expression} as {name}" for name, expression in columns.items()))
    )


def _first(*expressions: str | None) -> str:
    return f"coalesce({', '.join(e for e in expressions if e)})"
