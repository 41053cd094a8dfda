"""Small bridges between Arrow columns and NumPy: no string becomes a Python object, ids are handled by their codes."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

Column: TypeAlias = pa.Array | pa.ChunkedArray
"""A column of a table, or a result computed from one."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

pc: Any = pyarrow.compute
"""Arrow's functions, which pyarrow makes when it is imported, so that no type checker sees them.

The result is a ChunkedArray if a column among the arguments is one, else an Array.
"""


def one_array(column: Column) -> pa.Array:
    """A column as one Arrow array, whatever its chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def floats(column: Column) -> Floats:
    """A numeric column as float64 (N,); nulls become NaN."""
    return np.asarray(one_array(column).cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def ints(column: Column, null: int = 0) -> Ints:
    """An integer column as int64 (N,); nulls become `null`."""
    return np.asarray(pc.fill_null(one_array(column).cast(pa.int64()), null).to_numpy(), dtype=np.int64)


def bools(column: Column, *, null: bool = False) -> Bools:
    """A boolean column as (N,); nulls become `null`."""
    return np.asarray(pc.fill_null(one_array(column), null).to_numpy(zero_copy_only=False), dtype=np.bool_)


def nulls(column: Column) -> Bools:
    """Return the null mask of a column, (N,)."""
    return np.asarray(one_array(column).is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def codes(column: Column) -> tuple[Ints, pa.Array]:
    """Number the distinct values in order of first appearance: codes (N,) and the values (U,).

    A null is a value like any other.

    >>> numbers, values = codes(pa.array(["b", "a", "b"]))
    >>> numbers.tolist(), values.to_pylist()
    ([0, 1, 0], ['b', 'a'])
    """
    encoded = one_array(column).dictionary_encode(null_encoding="encode")
    return ints(encoded.indices), encoded.dictionary


def runs(column: Column) -> tuple[Ints, pa.Array]:
    """Number the runs of equal values: numbers (N,) and the value of each run (R,); faster than `codes`.

    >>> numbers, values = runs(pa.array(["a", "a", "b"]))
    >>> numbers.tolist(), values.to_pylist()
    ([0, 0, 1], ['a', 'b'])
    """
    encoded = pc.run_end_encode(one_array(column))
    return np.repeat(np.arange(len(encoded.values)), np.diff(encoded.run_ends.to_numpy(), prepend=0)), encoded.values


def totals(group: Ints, chosen: Bools, values: Ints, num_groups: int) -> Ints:
    """Return the sum of the chosen whole numbers (N,) in each group (G,); exact below 2^53."""
    return np.bincount(group[chosen], values[chosen], num_groups).astype(np.int64)


def positions(ids: Column, among: Column) -> Ints:
    """Return the index of each id (N,) among others (the first of duplicates); -1 if it is absent."""
    return ints(pc.index_in(one_array(ids), value_set=one_array(among)), null=-1)


def take_or_null(column: Column, index: Ints) -> pa.Array:
    """Return the values at positions (N,); null for position -1."""
    return one_array(column).take(pa.array(index, mask=index < 0))


def looked_up(rows: pa.Table, key: str, others: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows with columns of others of the same key in the place of their own; null where there is no other."""
    at = positions(rows.column(key), others.column(key))
    rows = rows.drop_columns([name for name in names if name in rows.column_names])
    for name in names:
        rows = rows.append_column(name, take_or_null(others.column(name), at))
    return rows


def ragged(column: Column) -> tuple[Ints, pa.Array]:
    """A list column as offsets (N+1,) and flat values (M,); a null list is an empty one."""
    array = one_array(column)
    lengths = ints(pc.list_value_length(array))
    return np.concatenate(([0], np.cumsum(lengths))), array.flatten()
