"""Rows of the files that people have, JSONL, JSON and Parquet, with their places; those that are none are counted."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, shortened
from gradus.data.records import Row

MAX_EXAMPLES = 5


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
    """Yield the rows of a JSONL, JSON or Parquet file.

    A .json file is an array of rows, one object, or JSONL. What is no JSON object is counted as refused and skipped.
    """
    if not path.is_file():
        raise BadInputError(f"there is no file {path}", hint="give a .jsonl or .parquet file")
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    if path.suffix not in (".jsonl", ".json", ".ndjson"):
        raise BadInputError(f"{path} ends in {path.suffix or 'nothing'}", hint="give a .jsonl or .parquet file")
    whole = _whole(path) if path.suffix == ".json" else None
    for place, row, fault in _lines(path) if whole is None else _parts(path, whole):
        if fault:
            refused.add(fault, place)
        else:
            yield Located(place, cast("Row", row))


def _parquet(path: Path) -> Iterator[Located]:
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
        raise BadInputError(f"{path} cannot be read as Parquet: it is cut off, damaged or something else") from None


def _values(path: Path, name: str, column: pa.Array) -> list[object]:
    """The values of a column; BadInputError if Python has none of that kind, as for years after 9999."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, KeyError, ImportError, pa.ArrowException):
        message = f"{path}: column {shortened(name)} holds dates or times that cannot be read"
        raise BadInputError(message, hint="write it as text") from None


def _whole(path: Path) -> list[object] | Row | None:
    """Return what a .json file holds that is not a row a line; None for JSONL, or for what is no JSON."""
    with path.open("rb") as file:
        first = next((line for line in file if line.strip().removeprefix(b"\xef\xbb\xbf")), b"")
    if not first.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(first)
            return None
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except _TwiceError as error:
        raise BadInputError(f"{path}: {error}", hint="remove one of them") from None
    except (ValueError, RecursionError):
        return None


def _parts(path: Path, whole: list[object] | Row) -> Iterator[tuple[str, object, str]]:
    """Yield place, value and fault of each part of an array, or of the one object, of a .json file."""
    for index, row in enumerate(whole if isinstance(whole, list) else [whole], start=1):
        yield f"{path} row {index}" if isinstance(whole, list) else str(path), row, _fault(row)


def _lines(path: Path) -> Iterator[tuple[str, object, str]]:
    """Yield place, value and fault of each line of a JSONL file that is not empty."""
    with path.open("rb") as file:
        for index, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = None
            try:
                row = json.loads(line.decode("utf-8-sig" if index == 1 else "utf-8"), object_pairs_hook=_once)
                fault = _fault(row, escaped=b"\\u" in line)
            except _TwiceError as error:
                fault = str(error)
            except UnicodeDecodeError:
                fault = "not valid UTF-8"
            except (ValueError, RecursionError):
                fault = "not valid JSON"
            yield f"{path} line {index}", row, fault


class _TwiceError(ValueError):
    """An object has a key twice: which of its values is meant, nobody knows."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _TwiceError(f"the key {shortened(name, 40)} stands there twice")
    return found


def _fault(row: object, *, escaped: bool = True) -> str:
    """Return why a value of a file is no row; empty if it is one. JSON may escape half of a character."""
    if not isinstance(row, dict):
        return "not a JSON object"
    try:
        if escaped:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "not valid Unicode (half of a surrogate pair)"
    return ""
