"""One view of rows: columns by name, for an update, an optimiser step and a pack of whole rows alike.

Two answers of two and one tokens to one problem:

    rows = Rows({"reward": torch.tensor([1.0, 0.0]), "group": torch.tensor([0, 0])}, {"now.logp": logp}, lengths)
    rows["reward"]                  (N,)   a column of rows
    rows["now.logp"]                (M,)   a column of tokens, those of all rows end to end
    rows.row, rows.mask             [0, 0, 1] and whether each token counts
    rows.by("group").mean(rows["reward"])      (N,): the mean of each row's group

gradus.models.objectives.columns has the names. A component reads what it declares (`Rows.reading`).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gradus.components import rows as base
from gradus.components.rows import ColumnError, Marks, numbered
from gradus.models.objectives.columns import COLUMNS
from gradus.models.objectives.ragged import Ragged, offsets, spans


class Rows(base.Rows):
    """N rows with their columns, and M completion tokens of them with theirs; columns are tensors, texts NumPy's."""

    known: ClassVar[Collection[str]] = COLUMNS

    def __init__(
        self,
        of_rows: Mapping[str, Any],
        of_tokens: Mapping[str, Tensor] | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        marks: Mapping[str, Marks] | None = None,
    ) -> None:
        super().__init__(of_rows, None if lengths is None else len(lengths))
        self._marks = dict(marks or {})
        self._of_tokens = dict(of_tokens or {})
        self.lengths = torch.zeros(self.num_rows, dtype=torch.int64) if lengths is None else lengths
        self._mask = mask
        size = int(self.lengths.sum()) if self._of_tokens else 0
        if uneven := [name for name, values in self._of_tokens.items() if len(values) != size]:
            raise ColumnError(f"column {uneven[0]} does not fit {self.num_rows} rows of {size} tokens")

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that are there."""
        return [*self._of_rows, *self._of_tokens]

    def __contains__(self, name: str) -> bool:
        """Return whether a column is there."""
        return name in self._of_rows or name in self._of_tokens or name in self._marks

    def _column(self, name: str) -> Any:
        if name in self._marks:
            return self._marks[name]
        return self._of_tokens[name] if name in self._of_tokens else self._of_rows[name]

    @cached_property
    def row(self) -> Tensor:
        """(M,) int64: the row of each token, 0 .. N - 1."""
        return torch.repeat_interleave(torch.arange(self.num_rows), self.lengths)

    @cached_property
    def position(self) -> Tensor:
        """(M,) int64: the place of each token in its row, from 0."""
        return torch.arange(len(self.row)) - offsets(self.lengths)[:-1][self.row]

    @cached_property
    def mask(self) -> Tensor:
        """(M,) bool: tokens that count."""
        return torch.ones(len(self.row), dtype=torch.bool) if self._mask is None else self._mask

    def inside(self, marks: Marks) -> Tensor:
        """Return which tokens belong to one of some marks, (M,) bool."""
        first = offsets(self.lengths)[:-1][marks.row]
        found = torch.zeros(len(self.row) + 1, dtype=torch.int64)  # +1 where one begins, -1 behind its end
        found.index_add_(0, first + marks.start, torch.ones_like(first))
        found.index_add_(0, first + marks.end, -torch.ones_like(first))
        return found.cumsum(0)[:-1] > 0

    @cached_property
    def row_tokens(self) -> Tensor:
        """(N,) int64: counted tokens of each row."""
        if self._mask is None:
            return self.lengths
        return torch.zeros(self.num_rows, dtype=torch.int64).index_add_(0, self.row, self.mask.long())

    def row_sum(self, values: Tensor) -> Tensor:
        """Sum of values (M,) over each row's counted tokens, (N,)."""
        return self._sum(values if self._mask is None else torch.where(self._mask, values, 0.0))

    def row_mean(self, values: Tensor) -> Tensor:
        """Mean of values (M,) over each row's counted tokens, (N,); 0 for a row without any."""
        every = torch.equal(self.row_tokens, self.lengths)  # then the mask is spared, and its gradient
        return (self._sum(values) if every else self.row_sum(values)) / self.row_tokens.to(values.dtype).clamp_min(1)

    def _sum(self, values: Tensor) -> Tensor:
        if len(values) != len(self.row):
            raise ColumnError(f"{len(values)} values do not fit {self.num_rows} rows of {len(self.row)} tokens")
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)  # the check is made above

    def of_token(self, values: Tensor) -> Tensor:
        """Return for each token the value (N,) of its row, (M,)."""
        return values.index_select(0, self.row)  # a quarter of the time of values[row]

    def by(self, *names: str) -> "Groups":
        """Group the rows by the values of columns."""
        return Groups(torch.from_numpy(numbered([self[name] for name in names])))

    def having(self, **columns: Any) -> Tensor:
        """Return which rows have these values, (N,) bool; a tuple or list names several of which one is enough."""
        return torch.from_numpy(super().having(**columns))

    def places(self, rows: Tensor) -> Tensor:
        """Return where the tokens of some rows are, (m,) int64, one row after the other."""
        return spans(offsets(self.lengths)[rows], self.lengths[rows])

    def select(self, rows: Tensor) -> "Rows":
        """Return some rows by number, in that order, with their tokens; gradients are kept."""
        at = self.places(rows)
        found = Rows(
            {name: _taken(values, rows) for name, values in self._of_rows.items()},
            {name: values[at] for name, values in self._of_tokens.items()},
            self.lengths[rows],
            None if self._mask is None else self._mask[at],
            {name: _of_some(marks, rows) for name, marks in self._marks.items()},
        )
        return found.reading(self._needs, self._reader)

    def adding(
        self,
        of_rows: Mapping[str, Any] | None = None,
        of_tokens: Mapping[str, Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> "Rows":
        """Return the rows with more columns, or others of the same names; None keeps the mask."""
        return Rows(
            {**self._of_rows, **(of_rows or {})},
            {**self._of_tokens, **(of_tokens or {})},
            self.lengths,
            self._mask if mask is None else mask,
            self._marks,
        )


class Groups:
    """Rows by group. Statistics are those of each row's group, (N,); NaN values count nowhere."""

    def __init__(self, of: Tensor) -> None:
        self.of = of
        """(N,) int64: the group of each row, 0 .. num - 1."""
        self.num = int(of.max()) + 1 if of.numel() else 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum."""
        values = values.double()
        total = torch.zeros(self.num, dtype=torch.float64)
        return total.index_add_(0, self.of, values.masked_fill(values.isnan(), 0.0))[self.of]

    def count(self, values: Tensor) -> Tensor:
        """Return how many values there are."""
        return self.sum((~values.isnan()).double())

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean; 0 for a group without values."""
        return self.sum(values) / self.count(values).clamp_min(1)

    def std(self, values: Tensor, ddof: int = 1) -> Tensor:
        """Return the standard deviation; exactly 0 where all values are equal."""
        squares = self.sum(torch.where(self.varied(values), values - self.mean(values), 0.0) ** 2)
        return (squares / (self.count(values) - ddof).clamp_min(1)).sqrt()

    def max(self, values: Tensor) -> Tensor:
        """Return the largest value; -inf for a group without values."""
        found = torch.full((self.num,), -torch.inf, dtype=values.dtype)
        return found.scatter_reduce_(0, self.of, values.masked_fill(values.isnan(), -torch.inf), "amax")[self.of]

    def varied(self, values: Tensor) -> Tensor:
        """Return whether two values differ, (N,) bool. The mean of equal numbers need not be equal to them."""
        return self.max(values) > -self.max(-values)


def _of_some(marks: Marks, rows: Tensor) -> Marks:
    """The marks of some rows, by number in their order."""
    first = torch.searchsorted(marks.row, rows)
    count = torch.searchsorted(marks.row, rows, right=True) - first
    at, mark = torch.repeat_interleave(torch.arange(len(rows)), count), spans(first, count)
    return Marks(at, marks.start[mark], marks.end[mark], marks.value[mark], marks.label[mark.numpy()])


def _taken(values: Any, rows: Tensor) -> Any:
    if isinstance(values, Ragged):
        return values.select(rows)
    return values[rows.numpy()] if isinstance(values, np.ndarray) else values[rows]


def all_finite(*logprobs: Tensor) -> Tensor:
    """Return the tokens of which every log-prob is finite, (M,) bool."""
    return torch.stack([torch.isfinite(value) for value in logprobs]).all(0)
