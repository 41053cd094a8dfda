"""Lists of different lengths end to end, so that rows are chosen and joined without a Python loop over them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """N lists of T values in all.

    >>> lists = Ragged.of([[5, 6], [], [7]])
    >>> lists.values.tolist(), lists.lengths.tolist(), lists.places(torch.tensor([2, 0])).tolist()
    ([5, 6, 7], [2, 0, 1], [2, 0, 1])
    """

    values: Tensor
    """(T,)."""
    offsets: Tensor
    """(N + 1,) int64: list i is values[offsets[i] : offsets[i + 1]]."""

    @classmethod
    def of(cls, lists: Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> Self:
        """Return the lists end to end."""
        lengths = torch.tensor([len(one) for one in lists], dtype=torch.int64)
        values = np.concatenate([np.asarray(one) for one in lists]) if lists else np.zeros(0)
        return cls(torch.from_numpy(values).to(dtype), offsets(lengths))

    def __len__(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Tensor:
        """Return one list."""
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[Tensor]:
        """Return the lists one by one."""
        return iter(self.values.split(self.lengths.tolist()))

    @cached_property
    def lengths(self) -> Tensor:
        """(N,) int64."""
        return self.offsets.diff()

    @cached_property
    def row(self) -> Tensor:
        """(T,) int64: the list of each value."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    def places(self, rows: Tensor) -> Tensor:
        """Return where the values of these lists are, one list after the other."""
        return spans(self.offsets[rows], self.lengths[rows])

    def select(self, rows: Tensor) -> "Ragged":
        """Return these lists."""
        return Ragged(self.values[self.places(rows)], offsets(self.lengths[rows]))


def offsets(lengths: Tensor) -> Tensor:
    """Return where lists of these lengths (N,) begin and end, (N + 1,)."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def spans(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the integers of half-open ranges, one range after the other.

    >>> spans(torch.tensor([10, 3]), torch.tensor([2, 3])).tolist()
    [10, 11, 3, 4, 5]
    """
    first = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return first + torch.arange(len(first))


def distinct(lists: Ragged) -> Tensor:
    """Number the lists, equal ones alike, (N,) int64.

    >>> distinct(Ragged.of([[5, 6], [5], [5, 6]])).tolist()
    [1, 0, 1]
    """
    numbers = torch.zeros(len(lists), dtype=torch.int64)
    known = 0
    for length in lists.lengths.unique().tolist():
        rows = (lists.lengths == length).nonzero()[:, 0]
        same = lists.values[lists.places(rows)].view(len(rows), length)
        numbers[rows] = known + (torch.unique(same, dim=0, return_inverse=True)[1] if length else 0)
        known = int(numbers[rows].max()) + 1
    return numbers


def joint(*columns: Tensor) -> Tensor:
    """Return a number for each combination of values of columns of integers (M,), equal ones alike, (M,) int64.

    >>> joint(torch.tensor([1, 1, 2]), torch.tensor([-1, 5, -1])).tolist()
    [0, 6, 7]
    """
    found = torch.zeros_like(columns[0])
    for values in columns if len(found) else ():
        least, largest = values.aminmax()
        found = found * (largest - least + 1) + values - least
    return found
