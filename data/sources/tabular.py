"""Reading the files that people have: JSONL and Parquet, places named, columns renamed, refused rows counted."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.lake.schema import PROBLEMS, ROLLOUTS, TableSchema, cast_to_schema
from gradus.data.nearest import did_you_mean
from gradus.data.records import Row
from gradus.data.sources.columns import column_of, other_column

MAX_EXAMPLES = 5
MAPPED = tuple(dict.fromkeys(column.name for table in (ROLLOUTS, PROBLEMS) for column in table.columns))
"""Columns that columns of a file of rollouts may be renamed to: those of rollouts, and of problems beside them."""
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


def refuse_fields(columns: Mapping[str, str], fields: Collection[str], table: str) -> None:
    """Raise UsageError if columns are to be renamed to something that nobody reads; `fields` are read of a table."""
    for ours in columns:
        if ours not in fields:
            known = list(fields)
            hint = did_you_mean(ours, known, f"its fields are {', '.join(known)}")
            raise UsageError(f"there is no field {shortened(ours)} of {table}", hint=hint)


@dataclass
class Renamed:
    """Rows with some columns under other names, ours = theirs; what columns there were is remembered.

    Theirs may lie in an object: `reward_model.ground_truth`.
    """

    columns: Mapping[str, str]
    source: str
    seen: dict[str, None] = field(default_factory=dict[str, None])
    found: set[str] = field(default_factory=set[str])

    def __call__(self, row: Row) -> Row:
        """Return a row with its columns renamed."""
        if not self.columns:
            return row
        self.seen.update(dict.fromkeys(row))
        found = {ours: _values_at(row, theirs) for ours, theirs in self.columns.items()}
        self.found.update(theirs for ours, theirs in self.columns.items() if found[ours])
        return {**row, **{ours: next(iter(values), None) for ours, values in found.items()}}

    def refuse_unknown(self) -> None:
        """Raise BadInputError if no row had a column that was to be renamed."""
        for ours, theirs in self.columns.items() if self.seen else ():
            if theirs not in self.found:
                known = list(self.seen)
                hint = did_you_mean(theirs, known, f"its columns are {', '.join(known)}")
                raise BadInputError(
                    f"{self.source} has no column {shortened(theirs)} that could be {shortened(ours)}", hint=hint
                )


def _values_at(row: Row, name: str) -> list[object]:
    """Return the value of a column, or of a key in its object by a dotted name; empty if there is none."""
    if name in row:
        return [row[name]]
    column, _, rest = name.partition(".")
    held = row.get(column)
    return _values_at(cast("Row", held), rest) if isinstance(held, dict) else []


def read_rows(path: Path, refused: Refused) -> Iterator[Located]:
    """The rows of a JSONL or Parquet file; lines that are not JSON objects are counted as refused and skipped."""
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
    rows: list[Located] = []
    renamed = Renamed(columns, str(path))
    needed = [name for name in schema.required if name not in ("rollout_id", "reward", "pass_rate")]
    for located in read_rows(path, refused):
        row = renamed(located.row)
        missing = [name for name in needed if row.get(name) is None]
        if missing:
            refused.add(f"no {missing[0]}", located.place)
        else:
            rows.append(Located(located.place, row))
        if strict and refused.reasons:
            break
    renamed.refuse_unknown()
    if strict and refused.reasons:
        raise BadInputError(refused.examples[0], hint="correct that row, or rename columns with --map ours=theirs")
    if not rows:
        raise BadInputError(f"{path} has no usable row", hint=f"{schema.name} need {', '.join(schema.required)}")
    return _table(rows, schema), refused


def _table(rows: Sequence[Located], schema: TableSchema) -> pa.Table:
    known = {column.name: column for column in schema.columns}
    names = list(dict.fromkeys(name for located in rows for name in located.row))
    places = [located.place for located in rows]
    arrays: dict[str, pa.Array] = {}
    for name in names:
        values = [located.row.get(name) for located in rows]
        if name in known:
            arrays[name] = column_of(known[name], values, places)
        else:
            arrays[name] = other_column(name, values, places, is_text=name in _TEXTS)
    for name in schema.required:
        arrays.setdefault(name, pa.nulls(len(rows), known[name].type))
    return cast_to_schema(pa.table(arrays), schema)


def _parquet(path: Path) -> Iterator[Located]:
    damaged = BadInputError(f"{path} cannot be read as Parquet: it is cut off, damaged or something else")
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        names: list[str] = file.schema_arrow.names
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            problem = f"{path} has the column {shortened(twice[0])} twice"
            raise BadInputError(problem, hint="rename or remove one of them")
        for batch_index, batch in enumerate(file.iter_batches(batch_size=8192)):
            columns = [_values(path, name, column) for name, column in zip(names, batch.columns, strict=True)]
            for index, values in enumerate(zip(*columns, strict=True)):
                yield Located(f"{path} row {batch_index * 8192 + index + 1}", dict(zip(names, values, strict=True)))
    except UnicodeDecodeError:
        raise BadInputError(f"{path} holds text that is not valid UTF-8", hint="write it again as UTF-8") from None
    except (pa.ArrowException, OSError):
        raise damaged from None


def _values(path: Path, name: str, column: pa.Array) -> list[object]:
    """The values of a column; BadInputError if Python has none of that kind, as for years after 9999."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, KeyError, ImportError, pa.ArrowException):
        raise BadInputError(
            f"{path}: column {shortened(name)} holds dates or times that cannot be read", hint="write it as text"
        ) from None


def _jsonl(path: Path, refused: Refused) -> Iterator[Located]:
    with path.open("rb") as file:
        for index, line in enumerate(file, start=1):
            place = f"{path} line {index}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if index == 1 else "utf-8"), object_pairs_hook=_once)
            except _TwiceError as error:
                refused.add(str(error), place)
                continue
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


class _TwiceError(ValueError):
    """An object has a key twice: which of its values is meant, nobody knows."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _TwiceError(f"the key {shortened(name, 40)} stands there twice")
    return found


def _is_unicode(row: Row) -> bool:
    """Return whether every text of a row can be stored: JSON may escape half of a character."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
