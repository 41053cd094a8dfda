"""The keys of a table's rows, there and each once, and digests of their content."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
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
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    if schema.own_key in table.column_names:
        own = table.column(schema.own_key).to_pylist()
        keys = [key if name is None else (name,) for name, key in zip(own, keys, strict=True)]
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
        row = f"{{{', '.join(_quoted(name).replace('%', '%%') + ': %s' for name in table.column_names)}}}\n"
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            cells = [_texts(column) for column in batch.columns]
            rows = zip(*cells, strict=True) if cells else [()] * batch.num_rows
            digest.update("".join(map(row.__mod__, rows)).encode())
    return digest.hexdigest()[:32]


def _texts(column: pa.Array) -> list[str]:
    """Return each value as `json.dumps` writes it; a column at a time is twice as fast as a row at a time."""
    if column.null_count == len(column):
        return ["null"] * len(column)
    if pa.types.is_list(column.type):
        inner = iter(_texts(column.flatten()))
        lengths = column.value_lengths().to_pylist()
        return ["null" if num is None else f"[{', '.join(islice(inner, num))}]" for num in lengths]
    values = column.to_pylist()
    if pa.types.is_string(column.type):
        return ["null" if value is None else _quoted(value) for value in values]
    if pa.types.is_primitive(column.type):  # no text of a number holds the separator
        return json.dumps(values)[1:-1].split(", ")
    return [json.dumps(value) for value in values]


def content_digest(table: pa.Table) -> str:
    """Return 32 hex digits that are the same for the same rows."""
    sink = pa.BufferOutputStream()
    compact = table.combine_chunks()
    with pa.ipc.new_stream(sink, compact.schema) as stream:
        stream.write_table(compact)
    return hashlib.sha256(sink.getvalue()).hexdigest()[:32]
