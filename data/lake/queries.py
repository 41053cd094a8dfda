"""SQL over the lake: a locked-down DuckDB that reads verified rows and nothing else.

    tables = {"scores": artifact_rows(store, "scores", [ref]), "runs": Relation.of(table)}
    with select(tables, {}, "select outcome, count(*) from scores group by outcome") as answer:
        for rows in answer.batches: ...

Rows are read, and the files below them checked, only of relations whose name occurs in the query; the others are there
with their columns, so that `show tables` and `describe` are complete.
Covered: the bytes of every file are checked before they are read (DuckDB returns flipped bits as values); a query
opens no file and no network, changes no setting, and writes nothing. The shards reach DuckDB through Arrow, because
the other way, its `allowed_paths`, allows writing too: a single SELECT with a COPY inside its WITH overwrote a shard.
Not covered: the time of a query, and files replaced between the check and the read.
"""

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from gradus.data.errors import UsageError
from gradus.data.lake.memory_limit import MemoryLimit

BATCH_ROWS = 1000
_UNLIMITED = MemoryLimit()


@dataclass(frozen=True)
class Relation:
    """Rows that a query may name."""

    columns: pa.Schema
    """Columns that `describe` shows where the rows are not read."""
    read: Callable[[], pa.Table | ds.Dataset]
    """Called once, and only if the query needs the rows."""
    projection: str = "*"
    """The SQL select list that the query sees of them."""

    @classmethod
    def of(cls, table: pa.Table) -> "Relation":
        """Rows that are in memory already."""

        def read() -> pa.Table:
            return table

        return cls(table.schema, read)


@dataclass(frozen=True)
class View:
    """Rows computed from relations, as they are before their projections."""

    needs: tuple[str, ...]
    """Names of relations, hidden ones too; those whose names begin with an underscore are seen by views alone."""
    build: Callable[[Mapping[str, duckdb.DuckDBPyRelation]], duckdb.DuckDBPyRelation]


@dataclass(frozen=True)
class Answer:
    """The result of a query."""

    columns: list[str]
    batches: Iterator[pa.RecordBatch]
    """Up to BATCH_ROWS rows each, computed while they are read."""
    interrupt: Callable[[], None]
    """End, from another thread, what is being computed; whoever reads the batches then gets UsageError."""
    table: Callable[[], pa.Table]
    """Read all rows, instead of the batches."""


@contextlib.contextmanager
def locked(
    relations: Mapping[str, Relation], views: Mapping[str, View], sql: str, memory: MemoryLimit = _UNLIMITED
) -> Generator[duckdb.DuckDBPyConnection]:
    """A database of relations and views, ready for one query; CorruptArtifactError if a file it needs is damaged."""
    needed = _needed(set(relations), views, sql)
    with memory.database() as connection:
        opened = {
            name: connection.from_arrow(relation.read() if name in needed else _unread(name, relation.columns))
            for name, relation in relations.items()
        }
        for name, view in views.items():
            view.build({need: opened[need].set_alias(need) for need in view.needs}).create_view(name)
        for name, relation in relations.items():
            if not name.startswith("_"):
                opened[name].project(relation.projection).create_view(name)
        # No files, no network, no extensions, no Python variables of the caller; and no way to allow them again.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


@contextlib.contextmanager
def select(
    relations: Mapping[str, Relation], views: Mapping[str, View], sql: str, memory: MemoryLimit = _UNLIMITED
) -> Generator[Answer]:
    """The answer to one SELECT; UsageError for anything else and for SQL that does not run."""
    names = [*views, *(name for name in relations if not name.startswith("_"))]
    with locked(relations, views, sql, memory) as connection, _plain_errors(names):
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("only one query that reads can be run", hint="write a single SELECT")
        found = connection.sql(statements[0].query)
        table = _plain_errors(names)(found.to_arrow_table)
        yield Answer(found.columns, _batches(found, names), connection.interrupt, table)


def _needed(relations: set[str], views: Mapping[str, View], sql: str) -> set[str]:
    """Relations that the query may read: what it reads it names, so their names occur in its text."""
    words = set(re.findall(r"\w+", sql.lower()))
    behind = {need for name, view in views.items() if name in words for need in view.needs}
    artifacts = {name for name in relations if "/" in name}  # there only because the query names them
    return relations & (words | behind | artifacts)


def _unread(name: str, columns: pa.Schema) -> pa.RecordBatchReader:
    """Return a reader with the schema only; reading it raises UsageError: the query did not name the table."""

    def refuse() -> Iterator[pa.RecordBatch]:
        raise UsageError(f"the query reads {name} without naming it", hint="write the name of every table as it is")
        yield

    return pa.RecordBatchReader.from_batches(columns, refuse())


def _batches(found: duckdb.DuckDBPyRelation, names: list[str]) -> Iterator[pa.RecordBatch]:
    with _plain_errors(names):
        yield from found.to_arrow_reader(BATCH_ROWS)


@contextlib.contextmanager
def _plain_errors(names: list[str]) -> Generator[None]:
    """Raise UsageError for a query that fails, without DuckDB's source excerpt."""
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        hint = f"the tables are {', '.join(names)}"
        raise UsageError(f"the query did not run: {without_excerpt(error)}", hint=hint) from error


def without_excerpt(error: duckdb.Error) -> str:
    """Return what an error of DuckDB says as one line, without its excerpt of the query."""
    return " ".join(re.split(r"\nLINE |\. Detail: Python", str(error))[0].split())
