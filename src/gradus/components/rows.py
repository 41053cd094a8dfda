"""One view of rows: N rows with columns by name, as components are shown them.

    rows = Rows({"pass_rate": np.array([0.5, np.nan]), "domain": np.array(["sums", "signs"])})
    rows["pass_rate"]                            (N,)
    rows.by("domain").mean(rows["pass_rate"])    (N,): the mean of each row's group
    rows.having(domain="sums")                   (N,) bool

Columns are NumPy arrays; those of an update are tensors (gradus.models.objectives.rows). A component reads the columns
that it declares (`Rows.reading`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """N lists of numbers end to end: list i is values[offsets[i] : offsets[i + 1]]."""

    values: Floats | Ints
    offsets: Ints

    def __len__(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Floats | Ints:
        """Return one list."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]


@dataclass(frozen=True)
class Marks:
    """Marked parts of rows, (K,) each, in the order of the rows: tensors in an update, else NumPy."""

    row: Any
    """int64: the number of its row."""
    start: Any
    """int64: its first completion token; -1 in a completion of text alone."""
    end: Any
    """int64: the one behind its last."""
    value: Any
    """float64, NaN for none."""
    label: Any
    """NumPy objects: str, or None."""


def tokens_of(starts: Ints, ends: Ints, first: int, behind: int) -> tuple[int, int]:
    """Return the half-open range of tokens that hold one of the characters first .. behind - 1; empty if none does.

    `starts` and `ends` are the first character of each token, and the one behind its last, (T,) each.

    >>> tokens_of(np.array([0, 2, 2]), np.array([3, 3, 5]), 2, 4)
    (0, 3)
    """
    start = int(np.searchsorted(ends, first, side="right"))
    return start, max(start, int(np.searchsorted(starts, behind, side="left"))) if first < behind else start


class ColumnError(ValueError):
    """A column that is not there, or that a component reads without declaring it."""


class Rows:
    """N rows with their columns."""

    known: ClassVar[Collection[str]] = ()
    """The names of columns that such rows can have; any if it is empty."""

    def __init__(self, columns: Mapping[str, Any], num_rows: int | None = None) -> None:
        self._of_rows = dict(columns)
        self.num_rows = len(next(iter(self._of_rows.values()))) if num_rows is None else num_rows
        self._needs: Collection[str] | None = None
        self._reader = ""
        if uneven := [name for name, values in self._of_rows.items() if len(values) != self.num_rows]:
            raise ColumnError(f"column {uneven[0]} does not fit {self.num_rows} rows")

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that are there."""
        return list(self._of_rows)

    def __contains__(self, name: str) -> bool:
        """Return whether a column is there."""
        return name in self._of_rows

    def __getitem__(self, name: str) -> Any:
        """Return a column; ColumnError if it is not there, or its reader did not declare it."""
        self._refuse(name)
        return self._column(name)

    def arrow(self, name: str) -> pa.Array | pa.ChunkedArray:
        """Return a column as Arrow has it, for functions of many texts; raise as a column does."""
        return pa.array(self[name])

    def _refuse(self, name: str) -> None:
        if self._needs is not None and name not in self._needs:
            if not (self._is_known(name) or name in self):
                listed = ", ".join(self.known)
                raise ColumnError(f"{self._reader} reads {name!r}, which is no column; there are {listed}")
            raise ColumnError(f"{self._reader} reads {name!r} without declaring it: add it to its `needs`")
        if name not in self:
            raise ColumnError(f"there is no column {name!r} here; there are {', '.join(self.columns)}")

    def _is_known(self, name: str) -> bool:
        return not self.known or name in self.known

    def _column(self, name: str) -> Any:
        return self._of_rows[name]

    def get(self, name: str) -> Any:
        """Return a column, or None if it is not there."""
        return self[name] if name in self else None  # noqa: SIM401 - this is it

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError that names the column which may be meant."""
        if name.startswith("_") or not (known := list(self.known or self.columns)):
            raise AttributeError(name)
        near = get_close_matches(name, known, 1, 0.0)[0]
        near = next((column for column in known if column.rpartition(".")[2] == name), near)
        raise AttributeError(f'rows have no attribute {name}: columns are read by name, such as rows["{near}"]')

    def marks(self, name: str) -> Marks:
        """Return the marks of a name, none if nothing marked any; raise as a column `marks.NAME` does."""
        return self[f"marks.{name}"]

    def by(self, *names: str) -> Any:
        """Group the rows by the values of columns."""
        return Groups(numbered([self[name] for name in names]))

    def having(self, **columns: Any) -> Any:
        """Return which rows have these values, (N,) bool; a tuple or list names several of which one is enough."""
        found = np.ones(self.num_rows, dtype=np.bool_)
        for name, value in columns.items():
            found &= np.isin(np.asarray(self[name]), list(value) if isinstance(value, tuple | list) else [value])
        return found

    def reading(self, needs: Collection[str] | None, reader: str) -> Self:
        """Return the rows as a component sees them that declares these columns; None declares all."""
        found = type(self).__new__(type(self))
        found.__dict__.update(self.__dict__, _needs=needs, _reader=reader)
        return found


class Groups:
    """Rows by group. Statistics are those of each row's group, (N,); NaN values count nowhere."""

    def __init__(self, of: Ints) -> None:
        self.of = of
        """(N,) int64: the group of each row, 0 .. num - 1."""
        self.num = int(of.max()) + 1 if of.size else 0

    def sum(self, values: Floats) -> Floats:
        """Return the sum."""
        return np.bincount(self.of, np.nan_to_num(values), self.num).astype(np.float64)[self.of]

    def count(self, values: Floats) -> Floats:
        """Return how many values there are."""
        return self.sum((~np.isnan(values)).astype(np.float64))

    def mean(self, values: Floats) -> Floats:
        """Return the mean; 0 for a group without values."""
        return self.sum(values) / np.maximum(self.count(values), 1)

    def std(self, values: Floats, ddof: int = 1) -> Floats:
        """Return the standard deviation; exactly 0 where all values are equal."""
        squares = self.sum(np.where(self.varied(values), values - self.mean(values), 0.0) ** 2)
        return np.sqrt(squares / np.maximum(self.count(values) - ddof, 1))

    def max(self, values: Floats) -> Floats:
        """Return the largest value; -inf for a group without values."""
        found = np.full(self.num, -np.inf)
        np.maximum.at(found, self.of, np.where(np.isnan(values), -np.inf, values))
        return found[self.of]

    def rank(self, values: Floats) -> Ints:
        """Return the rank within the group, 0 for the smallest value; equal ones by their order, NaN values last."""
        order = np.lexsort((values, self.of))
        _, first, size = np.unique(self.of[order], return_index=True, return_counts=True)
        found = np.empty(len(order), np.int64)
        found[order] = np.arange(len(order)) - np.repeat(first, size)
        return found

    def pairs(self) -> tuple[Ints, Ints]:
        """Return the numbers of the rows of each pair within a group, (P,) each, the earlier row first."""
        order = np.argsort(self.of, kind="stable")
        members = np.split(order, np.flatnonzero(np.diff(self.of[order])) + 1)
        found = [np.stack([rows[side] for side in np.triu_indices(len(rows), 1)]) for rows in members]
        one, two = np.concatenate(found, axis=1)
        return one, two

    def varied(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Return whether two values differ, (N,) bool. The mean of equal numbers need not be equal to them."""
        return self.max(values) > -self.max(-values)


def numbered(columns: Sequence[Any]) -> Ints:
    """Number the rows by their values, equal ones alike, (N,) int64."""
    coded = [np.unique(np.asarray(values), return_inverse=True)[1].reshape(-1) for values in columns]
    found = coded[0] if len(coded) == 1 else np.unique(np.stack(coded), axis=1, return_inverse=True)[1].reshape(-1)
    return found.astype(np.int64)
