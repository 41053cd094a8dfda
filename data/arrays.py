"""Small bridges between Arrow columns and NumPy that the relational code of this package shares.

Left out: anything that copies strings into Python objects; ids stay Arrow and are handled by their codes.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
"""Arrow's functions; they are made when pyarrow is imported, so that no type checker can see them."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def one_array(column: Any) -> Any:
    """A column as one Arrow array, whatever its chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def floats(column: Any) -> Floats:
    """A numeric column as float64 (N,); nulls become NaN."""
    return np.asarray(one_array(column).cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def ints(column: Any, null: int = 0) -> Ints:
    """An integer column as int64 (N,); nulls become `null`."""
    return np.asarray(pc.fill_null(one_array(column).cast(pa.int64()), null).to_numpy(), dtype=np.int64)


def bools(column: Any, *, null: bool = False) -> Bools:
    """A boolean column as (N,); nulls become `null`."""
    return np.asarray(pc.fill_null(one_array(column), null).to_numpy(zero_copy_only=False), dtype=np.bool_)


def nulls(column: Any) -> Bools:
    """Return the null mask of a column, (N,)."""
    return np.asarray(one_array(column).is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def codes(column: Any) -> tuple[Ints, Any]:
    """Number the distinct values in order of first appearance: codes (N,) and the values (U,).

    A null is a value like any other.

    >>> numbers, values = codes(pa.array(["b", "a", "b"]))
    >>> numbers.tolist(), values.to_pylist()
    ([0, 1, 0], ['b', 'a'])
    """
    encoded = one_array(column).dictionary_encode(null_encoding="encode")
    return ints(encoded.indices), encoded.dictionary


def positions(ids: Any, among: Any) -> Ints:
    """Return the index of each id (N,) among others (the first of duplicates); -1 if it is absent."""
    return ints(pc.index_in(one_array(ids), value_set=one_array(among)), null=-1)


def take_or_null(column: Any, index: Ints) -> Any:
    """Return the values at positions (N,); null for position -1."""
    return one_array(column).take(pa.array(index, mask=index < 0))


def ragged(column: Any) -> tuple[Ints, Any]:
    """A list column as offsets (N+1,) and flat values (M,); a null list is an empty one."""
    array = one_array(column)
    lengths = ints(pc.list_value_length(array))
    return np.concatenate(([0], np.cumsum(lengths))), array.flatten()
