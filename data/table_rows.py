"""Rows of an Arrow table, each column of which is converted when it is first read.

    rows["pass_rate"]          (N,) float64, NaN for null
    rows["problem.level"]      (N,): the key `level` of each problem's column `extra`
    rows["parts.format"]       (N,) float64: the value of one reward, from the column `components`
    rows.marks("step")         Marks: parts of completions, from the column `marks`

Numbers become int64, or float64 with NaN for null; texts str or None; lists of numbers `Lists`; all else objects.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from gradus.components.rows import Lists, Marks, Rows
from gradus.data.arrays import Column, Ints, bools, floats, ints, one_array, pc, ragged
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import MARKS, OF_MARKS, OF_PARTS, OF_PROBLEM


class TableRows(Rows):
    """N rows with the columns of an Arrow table."""

    extra: ClassVar[str] = "extra"
    """The column with further fields of a problem, as a JSON object."""

    def __init__(self, table: pa.Table, pool: "tuple[TableRows, Ints] | None" = None) -> None:
        super().__init__({}, table.num_rows)
        self.table = table
        self._pool = pool
        """The rows that these were selected from, and their places there."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that are there."""
        return self.table.column_names

    def __contains__(self, name: str) -> bool:
        """Return whether a column, a key of `extra` or a part of the reward is there."""
        if name.startswith(OF_MARKS):  # where nothing is marked, there is no column
            return True
        return name in self.columns or (self._source(name) or name) in self.columns

    def _source(self, name: str) -> str:
        """The column that a key is read from; empty for a column by itself."""
        if name.startswith(OF_PROBLEM):
            return self.extra
        return "components" if name.startswith(OF_PARTS) else ""

    def _is_known(self, name: str) -> bool:
        return super()._is_known(name) or "." in name

    def _column(self, name: str) -> Any:
        if name not in self._of_rows:
            if name in self.columns:
                self._of_rows[name] = _converted(self.table.column(name))
            elif name.startswith(OF_MARKS):
                column = self.table.column(MARKS) if MARKS in self.columns else None
                self._of_rows[name] = marks_in(column, name.removeprefix(OF_MARKS))
            elif name.startswith(OF_PARTS):
                parts = one_array(self.table.column("components"))
                self._of_rows[name] = floats(pc.map_lookup(parts, name.removeprefix(OF_PARTS), "first"))
            else:
                self._of_rows[name] = self._extra(name)
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
            values = [json.loads(text).get(key) if text else None for text in self.table.column(self.extra).to_pylist()]
        except (ValueError, AttributeError):
            raise BadInputError(f"a problem's column extra is no JSON object, and a component reads {name}") from None
        if all(value is None for value in values):
            message = f"no problem has {key!r} in its column extra, and a component reads {name}"
            raise BadInputError(message, hint="give problems with that key, or correct the component")
        try:
            found = pa.array(values)
            return _objects(values) if pa.types.is_nested(found.type) else _converted(found)
        except (pa.ArrowException, OverflowError):  # of several types, or whole numbers beyond 64 bits
            return _objects(values)

    def over(self, table: pa.Table) -> Self:
        """Return the rows with the columns of another table of them."""
        return type(self)(table)

    def select(self, rows: Ints) -> Self:
        """Return some rows by number, in that order."""
        return type(self)(self.table.take(pa.array(rows)), (self, rows))


def marks_in(column: Column | None, name: str) -> Marks:
    """Return the marks of a name in a column `marks`; none without one."""
    if column is None:
        none = np.zeros(0, np.int64)
        return Marks(none, none, none, np.zeros(0), np.zeros(0, np.object_))
    offsets, marks = ragged(column)
    marks = marks.take(pa.array(chosen := np.flatnonzero(bools(pc.equal(marks.field("name"), name)))))
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[chosen]
    start, end, value, label = (marks.field(each) for each in ("start", "end", "value", "label"))
    return Marks(row, ints(start, null=-1), ints(end, null=-1), floats(value), _objects(label.to_pylist()))


def _converted(column: Column) -> Any:
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count:
        return ints(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return floats(column)
    if pa.types.is_boolean(kind):
        return floats(column.cast(pa.int8()))
    if pa.types.is_list(kind) and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        offsets, values = ragged(column)
        return Lists(floats(values) if pa.types.is_floating(kind.value_type) else ints(values), offsets)
    return _objects(column.to_pylist())


def _objects(values: Sequence[Any]) -> Any:
    found = np.empty(len(values), dtype=np.object_)
    found[:] = values
    return found
