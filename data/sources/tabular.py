"""Reading the files that people have: JSONL and Parquet, places named, columns renamed, refused rows counted."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, in_words
from gradus.data.lake.schema import PROBLEMS, TableSchema, cast_to_schema
from gradus.data.records import Row

MAX_EXAMPLES = 5
_TEXTS = frozenset(column.name for column in PROBLEMS.columns if column.type == pa.string())
"""Columns of problems that rollouts may carry along: they mean the same there."""


@dataclass
class Refused:
    """Rows that could not be used: how many for which reason, and the first places."""

    reasons: Counter[str] = field(default_factory=Counter[str])
    examples: list[str] = field(default_factory=list[str])

    def add(self, reason: str, place: str) -> None:
        """Count a row."""
        self.reasons[reason] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{place}: {reason}")


@dataclass(frozen=True)
class Located:
    """A row and its place, for messages: `train.jsonl line 7`."""

    place: str
    row: Row


def read_rows(path: Path, refused: Refused) -> Iterator[Located]:
    """The rows of a JSONL or Parquet file; lines that are no JSON object are counted as refused and skipped."""
    if not path.is_file():
        raise BadInputError(f"there is no file {path}", hint="give a .jsonl or .parquet file")
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix in (".jsonl", ".json", ".ndjson"):
        yield from _jsonl(path, refused)
    else:
        raise BadInputError(f"{path} ends in {path.suffix or 'nothing'}", hint="give a .jsonl or .parquet file")


def read_user_table(
    path: Path, schema: TableSchema, columns: Mapping[str, str], *, strict: bool
) -> tuple[pa.Table, Refused]:
    """A user's file as a table of the schema; `columns` renames, ours = theirs. Raises BadInputError.

    Rows without a required value are refused; with `strict` the first refusal is raised with its place.
    """
    refused = Refused()
    rows: list[Row] = []
    place = str(path)
    for located in read_rows(path, refused):
        row = {**located.row, **{ours: located.row.get(theirs) for ours, theirs in columns.items()}}
        missing = [name for name in _needed(schema) if row.get(name) is None]
        if missing:
            refused.add(f"no {missing[0]}", located.place)
        else:
            rows.append(row)
        if strict and refused.reasons:
            break
    if strict and refused.reasons:
        raise BadInputError(refused.examples[0], hint="correct that row, or rename columns with --map ours=theirs")
    if not rows:
        raise BadInputError(f"{place} has no usable row", hint=f"{schema.name} need {', '.join(schema.required)}")
    return _table(rows, schema, path), refused


def _needed(schema: TableSchema) -> tuple[str, ...]:
    return tuple(name for name in schema.required if name not in ("rollout_id", "reward", "pass_rate"))


def _table(rows: Sequence[Row], schema: TableSchema, path: Path) -> pa.Table:
    known = {column.name: column.type for column in schema.columns}
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays: dict[str, pa.Array] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays[name] = pa.array(values, known.get(name))
        except (pa.ArrowException, OverflowError):
            if name in known:
                raise BadInputError(f"{path}: column {name} is not {known[name]} throughout") from None
            arrays[name] = pa.array([json.dumps(value, default=str) for value in values])
        if name in _TEXTS and pa.types.is_nested(arrays[name].type):
            raise BadInputError(
                f"{path}: column {name} is a list or an object, not a text", hint="write it as one text"
            )
    for name in schema.required:
        arrays.setdefault(name, pa.nulls(len(rows), known[name]))
    return cast_to_schema(pa.table(arrays), schema)


def _parquet(path: Path) -> Iterator[Located]:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        for batch_index, batch in enumerate(file.iter_batches(batch_size=8192)):
            for index, row in enumerate(batch.to_pylist()):
                yield Located(f"{path} row {batch_index * 8192 + index + 1}", row)
    except UnicodeDecodeError:
        raise BadInputError(f"{path} holds text that is not valid UTF-8", hint="write it again as UTF-8") from None
    except (pa.ArrowException, OSError) as error:
        raise BadInputError(f"{path} cannot be read as Parquet: {in_words(error).message}") from None


def _jsonl(path: Path, refused: Refused) -> Iterator[Located]:
    with path.open("rb") as file:
        for index, line in enumerate(file, start=1):
            place = f"{path} line {index}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if index == 1 else "utf-8"))
            except UnicodeDecodeError:
                refused.add("not valid UTF-8", place)
                continue
            except (ValueError, RecursionError):
                refused.add("not valid JSON", place)
                continue
            if not isinstance(row, dict):
                refused.add("not a JSON object", place)
            elif b"\\u" in line and not _is_unicode(row):
                refused.add("not valid Unicode (half of a surrogate pair)", place)
            else:
                yield Located(place, row)


def _is_unicode(row: Row) -> bool:
    """Whether every text of a row can be stored: JSON may escape half of a character."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
