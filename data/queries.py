"""SQL over artefacts: DuckDB views that read verified manifest files and nothing else.

    with lake_views(store, {"scores": [ref], "problems": [other]}) as connection: ...
    run_sql(store, {"scores": [ref]}, "select outcome, count(*) from scores group by outcome")

Each view has the columns of its table's schema, those that an older file lacks being null, unknown ones after them,
and `artefact`: the digest of the artefact that a row comes from.
Covered: the bytes of every file are checked before they are read (DuckDB returns flipped bits as values); a query
opens no file and no network, changes no setting, and writes nothing. The shards reach DuckDB through Arrow, because
the other way, its `allowed_paths`, allows writing too: a single SELECT with a COPY inside its WITH overwrote a shard.
Not covered: memory and time of a query (a large sort spills to DuckDB's own `.tmp`), and files replaced between the
check and the read.
"""

import contextlib
from collections.abc import Generator, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from data.errors import UsageError
from data.schema import TABLES
from data.store import Ref, Store


@contextlib.contextmanager
def lake_views(store: Store, refs: Mapping[str, Sequence[Ref]]) -> Generator[duckdb.DuckDBPyConnection]:
    """A locked-down in-memory database with one view per name over the artefacts given for it.

    Raises CorruptArtifactError where a file is not what its manifest says, UsageError where the artefacts of a name
    are of several tables or hold no rows (checkpoints).
    """
    with duckdb.connect(":memory:") as connection:
        for name, artefacts in refs.items():
            connection.register(name, _dataset(store, name, artefacts))
        # No files, no network, no extensions, no Python variables of the caller; and no way to allow them again.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def run_sql(store: Store, refs: Mapping[str, Sequence[Ref]], sql: str) -> pa.Table:
    """The result of one SELECT over the views; UsageError for anything else and for SQL that does not run."""
    with lake_views(store, refs) as connection:
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("only one query that reads can be run", hint="write a single SELECT")
            return connection.sql(statements[0].query).to_arrow_table()
        except duckdb.Error as error:
            said = " ".join(str(error).partition("\nLINE ")[0].split())
            raise UsageError(
                f"the query did not run: {said}", hint=f"the tables are {', '.join(refs) or 'none'}"
            ) from error


def _dataset(store: Store, name: str, artefacts: Sequence[Ref]) -> ds.Dataset:
    """The verified shards of the artefacts, each with its digest as the constant column `artefact`."""
    tables = {ref.table for ref in artefacts}
    if len(tables) != 1 or not tables <= set(TABLES):
        raise UsageError(f"the view {name!r} would read {', '.join(sorted(tables)) or 'nothing'}, not one table")
    parquet, disk = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    schemas, fragments = [TABLES[tables.pop()].arrow.append(pa.field("artefact", pa.string()))], []
    for ref in dict.fromkeys(artefacts):
        source = ds.field("artefact") == ref.digest
        for path in store.files(ref):
            schemas.append(pq.read_schema(path))
            fragments.append(parquet.make_fragment(str(path), disk, partition_expression=source))
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return ds.FileSystemDataset(fragments, schema, parquet, filesystem=disk)
