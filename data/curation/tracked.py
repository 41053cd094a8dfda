"""Tables of trackers: one row for each value of their key columns, and these rows beside those of a round.

    table = merged(before, changed, by)            # rows that changed take the place of those before
    rows = with_tracked(candidates, {"spo.value": ("problem_id",)}, [table])
    rows["spo.value"]                              # NaN for a problem of which nothing is known

A table of a tracker has its key columns first, and its own after them as NAME.COLUMN.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from gradus.components.rows import ColumnError, Lists, Rows, numbered
from gradus.data.arrays import Column, Floats, Ints, codes, floats, one_array, pc, take_or_null
from gradus.data.lake.columns import kind_of
from gradus.data.table_rows import TableRows

T = TypeVar("T", bound=TableRows)


class TrackerError(ValueError):
    """Rows that a tracker cannot keep."""


class Tracked(TableRows):
    """The rows that a tracker keeps: its key columns, and the columns that it declares."""

    def __init__(self, table: pa.Table, pool: tuple[TableRows, Ints] | None = None, keys: Sequence[str] = ()) -> None:
        super().__init__(table, pool)
        self.keys = keys
        """Names of the key columns."""

    def at(self, name: str, *keys: Any, default: float = np.nan) -> Floats:
        """Return the value of a column for each key (N,): an array for each key column, in their order.

        `default` stands for a key without a row, and for a value that is not known.
        """
        if len(keys) != len(self.keys):
            raise ColumnError(f"rows are kept by {', '.join(self.keys) or 'no column'}, and {len(keys)} columns ask")
        among = key_columns(self, self.keys)
        wanted = [one_array(key) if isinstance(key, Column) else _array(key) for key in keys] or [pa.nulls(1)]
        found = floats(take_or_null(self.table.column(name), places(wanted, among)))
        return np.where(np.isnan(found), default, found)


def with_tracked(rows: T, tracked: Mapping[str, Sequence[str]], tables: Sequence[pa.Table]) -> T:
    """Return rows with columns of trackers beside them, null where there is no row of a key.

    Args:
        rows: (N,) any rows that have the key columns; a column whose keys they lack is left out.
        tracked: Key columns by NAME.COLUMN.
        tables: Tables of trackers and measures; that of a column may be missing, or in several parts.
    """
    table = rows.table
    for name in dict.fromkeys(map(tracker_of, tracked)):
        columns = [column for column in tracked if tracker_of(column) == name]
        by = tracked[columns[0]]
        if not all(key in rows for key in by):
            continue
        parts = [each.select([*by, *columns]) for each in tables if columns[0] in each.column_names]
        own = pa.concat_tables(parts, promote_options="permissive") if parts else None
        at = None if own is None else places(key_columns(rows, by), key_columns(TableRows(own), by))
        for column in columns:
            found = pa.nulls(rows.num_rows) if own is None or at is None else take_or_null(own.column(column), at)
            table = table.append_column(column, found)
    return rows.over(table)


def tracker_of(column: str) -> str:
    """Return the name of the tracker that a column, NAME.COLUMN, is of."""
    return column.partition(".")[0]


def key_columns(rows: Rows, by: Sequence[str]) -> list[Column]:
    """Return key columns; one that is the same in every row if there are none."""
    return [rows.arrow(name) for name in by] or [pa.nulls(rows.num_rows)]


def places(keys: Sequence[Column], among: Sequence[Column]) -> Ints:
    """Return which row of others has the same key (N,), the first of several; -1 if none has.

    Numbers are equal whatever their type, and null equals null.
    """
    pairs = [_comparable(one_array(theirs), one_array(ours)) for theirs, ours in zip(among, keys, strict=True)]
    numbers = numbered([codes(pa.concat_arrays(pair))[0] for pair in pairs])
    num = len(among[0])
    first = np.full(int(numbers.max(initial=-1)) + 1, -1)
    first[numbers[:num][::-1]] = np.arange(num)[::-1]
    return first[numbers[num:]]


def _comparable(one: pa.Array, other: pa.Array) -> list[pa.Array]:
    """Return two columns in one type, NaN as null."""
    both = [
        pa.array(floats(each), from_pandas=True) if pa.types.is_floating(each.type) else each for each in (one, other)
    ]
    if both[0].type == both[1].type:
        return both
    if all(_is_number(each.type) for each in both):
        return [pa.array(floats(each), from_pandas=True) for each in both]
    return [each.cast(pa.string()) for each in both]


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def changed_rows(found: Mapping[str, Any], by: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Return the rows (C,) that a tracker returned as columns; TrackerError for what cannot be kept."""
    wanted = [*by, *columns]
    if missing := [name for name in wanted if name not in found]:
        raise TrackerError(f"it returns no {missing[0]}")
    if odd := [name for name in found if name not in wanted]:
        raise TrackerError(f"it returns {odd[0]!r}, which is neither a key column nor one of its `columns`")
    table = {name: _kept(name, found[name]) for name in wanted}
    num = len(table[wanted[0]])
    if uneven := [name for name, values in table.items() if len(values) != num]:
        raise TrackerError(f"it returns {num} values of {wanted[0]} and {len(table[uneven[0]])} of {uneven[0]}")
    rows = pa.table(table)
    keys = key_columns(TableRows(rows), by)
    again = np.flatnonzero(places(keys, keys) != np.arange(num))
    if len(again):
        named = ", ".join(f"{name} = {rows.column(name)[int(again[0])].as_py()}" for name in by)
        raise TrackerError(f"it returns two rows of {named}" if by else f"it returns {num} rows, and keeps one (by=())")
    return rows


def _kept(name: str, values: Any) -> pa.Array:
    """Return values as they are kept: int64, float64 (null for NaN), text, or lists of float64."""
    try:
        found = one_array(values) if isinstance(values, Column) else _array(values)
        kind = found.type
        if pa.types.is_list(kind) and (_is_number(kind.value_type) or not len(found)):
            return found.cast(pa.list_(pa.float64()))
        if pa.types.is_floating(kind):
            return pa.array(floats(found), from_pandas=True)
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return found.cast(pa.int64())
        if pa.types.is_null(kind) or pa.types.is_string(kind):
            return found
    except (pa.ArrowException, OverflowError):
        pass
    raise TrackerError(f"its values of {name} are neither numbers, nor texts, nor lists of numbers")


def _array(values: Any) -> pa.Array:
    if isinstance(values, Lists):
        return pa.ListArray.from_arrays(pa.array(values.offsets.astype(np.int32)), pa.array(values.values))
    if isinstance(values, np.ndarray) and values.ndim > 1:
        values = list(values)
    return pa.array(values, from_pandas=True)


def merged(before: pa.Table | None, changed: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows before with those that changed in the place of theirs, or added, in the order of their keys."""
    table = changed
    if before is not None and before.num_rows:
        stays = places(key_columns(TableRows(before), by), key_columns(TableRows(changed), by)) < 0
        try:
            table = pa.concat_tables([before.filter(pa.array(stays)), changed], promote_options="permissive")
        except pa.ArrowTypeError:
            pairs = zip(before.schema, changed.schema, strict=True)
            odd = next(ours.name for theirs, ours in pairs if theirs.type != ours.type)
            kept, now = kind_of(before.field(odd).type), kind_of(changed.field(odd).type)
            raise TrackerError(f"it kept {kept} as {odd}, and returns {now}") from None
    if not by:
        return table.combine_chunks()
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending", "at_end") for name in by])).combine_chunks()


def named(table: pa.Table, name: str, by: Sequence[str]) -> pa.Table:
    """Return rows of a tracker as others read them: NAME.COLUMN beside its key columns."""
    return table.rename_columns([each if each in by else f"{name}.{each}" for each in table.column_names])


def unnamed(table: pa.Table, name: str) -> pa.Table:
    """Return rows of a tracker as it reads them itself."""
    return table.rename_columns([each.removeprefix(f"{name}.") for each in table.column_names])
