"""Candidates: the problems that a round can train on, with their measurements, for filters, rankings and samplers.

    candidates["pass_rate"]          (N,) float64, NaN where never measured
    candidates["problem.level"]      (N,): the key `level` of each problem's `extra`

Columns are those of the tables problems and difficulty, and `prompt_tokens`. One is converted when it is first read:
numbers become int64, or float64 with NaN for null; texts str or None; histories `Lists`; all else Python objects.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gradus.components.rows import Rows
from gradus.data.arrays import Column, Floats, Ints, floats, ints, positions, ragged, take_or_null
from gradus.data.curation.difficulty import complete
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import DIFFICULTY, PROBLEMS

PROMPT_TOKENS = "prompt_tokens"
"""The column that holds the number of tokens of each prompt, if a policy was given to count them."""

OF_PROBLEM = "problem."
"""Begins the name of a key of `extra`."""

_MEASURED = tuple(column.name for column in DIFFICULTY.columns if column.name != "problem_id")


@dataclass(frozen=True)
class Lists:
    """N lists of numbers end to end: list i is values[offsets[i] : offsets[i + 1]]."""

    values: Floats
    offsets: Ints

    def __len__(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Floats:
        """Return one list."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]


class Candidates(Rows):
    """Problems with their measurements, from an Arrow table."""

    known: ClassVar[Collection[str]] = (*(column.name for column in PROBLEMS.columns), *_MEASURED, PROMPT_TOKENS)

    def __init__(self, table: pa.Table, pool: "tuple[Candidates, Ints] | None" = None) -> None:
        super().__init__({}, table.num_rows)
        self.table = table
        self._pool = pool
        """The candidates that these were selected from, and their rows there."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that are there."""
        return self.table.column_names

    def __contains__(self, name: str) -> bool:
        """Return whether a column, or a key of `extra`, is there."""
        return name in self.columns or (name.startswith(OF_PROBLEM) and "extra" in self.columns)

    def _is_known(self, name: str) -> bool:
        return super()._is_known(name) or name.startswith(OF_PROBLEM)

    def _column(self, name: str) -> Any:
        if name not in self._of_rows:
            plain = name in self.columns
            self._of_rows[name] = _converted(self.table.column(name)) if plain else self._extra(name)
        return self._of_rows[name]

    def arrow(self, name: str) -> Column:
        """Return a column of the table as it stands."""
        self._refuse(name)
        return self.table.column(name) if name in self.columns else super().arrow(name)

    def _extra(self, name: str) -> Any:
        """The values of a key of `extra`, null in a problem without it."""
        if self._pool is not None:  # the type of a column is that of all of them
            pool, rows = self._pool
            return pool._column(name)[rows]  # noqa: SLF001 - of this class
        key = name.removeprefix(OF_PROBLEM)
        try:
            values = [json.loads(text).get(key) if text else None for text in self.table.column("extra").to_pylist()]
        except (ValueError, AttributeError):
            raise BadInputError(f"a problem's column extra is no JSON object, and a component reads {name}") from None
        if all(value is None for value in values):
            raise BadInputError(
                f"no problem has {key!r} in its column extra, and a component reads {name}",
                hint="give problems with that key, or correct the component",
            )
        try:
            found = pa.array(values)
            return _objects(values) if pa.types.is_nested(found.type) else _converted(found)
        except (pa.ArrowException, OverflowError):  # of several types, or whole numbers beyond 64 bits
            return _objects(values)

    def select(self, rows: Ints) -> "Candidates":
        """Return some candidates by number, in that order."""
        return Candidates(self.table.take(pa.array(rows)), (self, rows))


def candidates(problems: pa.Table, difficulty: pa.Table | None) -> Candidates:
    """Return problems with their measurements beside them, in the order of the problems.

    A problem without a difficulty row, or with one of n = 0, is unmeasured: n and k are 0 and its pass_rate NaN.
    Raise BadInputError if no difficulty row matches a problem.
    """
    measured = complete(difficulty if difficulty is not None else DIFFICULTY.arrow.empty_table())
    at = positions(problems.column("problem_id"), measured.column("problem_id"))
    if measured.num_rows and problems.num_rows and not (at >= 0).any():
        theirs, ours = measured.column("problem_id")[0].as_py(), problems.column("problem_id")[0].as_py()
        raise BadInputError(
            f"none of the {measured.num_rows} difficulty rows names a problem of the problems table",
            hint=f"the difficulty says {theirs!r} where the problems say {ours!r}",
        )
    table = problems
    for name in _MEASURED:
        column = take_or_null(measured.column(name), at)
        table = table.append_column(name, column.fill_null(0) if name in ("n", "k") else column)
    return Candidates(table)


def no_candidates() -> Candidates:
    """Return candidates without rows: enough for a filter to refuse settings that contradict each other."""
    columns = {column.name: column.type for column in (*PROBLEMS.columns, *DIFFICULTY.columns)}
    return Candidates(pa.schema([*columns.items(), (PROMPT_TOKENS, pa.int64())]).empty_table())


def _converted(column: Column) -> Any:
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count:
        return ints(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return floats(column)
    if pa.types.is_boolean(kind):
        return floats(column.cast(pa.int8()))
    if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        offsets, values = ragged(column)
        return Lists(floats(values), offsets)
    return _objects(column.to_pylist())


def _objects(values: Sequence[Any]) -> Any:
    found = np.empty(len(values), dtype=np.object_)
    found[:] = values
    return found
