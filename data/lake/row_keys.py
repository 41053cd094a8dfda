"""The keys of a table's rows, there and each once, and digests of their content."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import TableSchema

_BATCH_ROWS = 4096


def row_keys(table: pa.Table, schema: TableSchema, folder: Path) -> list[tuple[object, ...]]:
    """Return the key of every row; raise BadInputError if one is missing or occurs twice."""
    columns = [table.column(name) for name in schema.key]
    for name, column in zip(schema.key, columns, strict=True):
        if column.null_count:
            raise BadInputError(f"a row for {folder} has no {name}", hint=f"every {schema.name} row needs a {name}")
    first, *others = (column.to_pylist() for column in columns)
    if schema.instead in table.column_names:
        first = [own or key for own, key in zip(table.column(schema.instead).to_pylist(), first, strict=True)]
    keys = list(zip(first, *others, strict=True))
    if len(set(keys)) != len(keys):
        twice, number = Counter(keys).most_common(1)[0]
        named = ", ".join(f"{name}={value}" for name, value in zip(schema.key, twice, strict=True))
        raise BadInputError(f"{named} occurs {number} times in {schema.name}", hint="keys must be unique")
    return keys


def key_hashes(keys: list[tuple[object, ...]]) -> npt.NDArray[np.int64]:
    """64 bits a key, which this process alone understands."""
    return np.fromiter(map(hash, keys), np.int64, len(keys))


def values_digest(tables: Iterable[pa.Table]) -> str:
    """Return 32 hex digits that are the same for the same values in the same order, however files divide the rows."""
    digest = hashlib.sha256()
    for table in tables:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            digest.update("".join(json.dumps(row) + "\n" for row in batch.to_pylist()).encode())
    return digest.hexdigest()[:32]


def content_digest(table: pa.Table) -> str:
    """Return 32 hex digits that are the same for the same rows."""
    sink = pa.BufferOutputStream()
    compact = table.combine_chunks()
    with pa.ipc.new_stream(sink, compact.schema) as stream:
        stream.write_table(compact)
    return hashlib.sha256(sink.getvalue()).hexdigest()[:32]
