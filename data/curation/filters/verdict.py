"""Answer of a filter: for every row kept or the reason it is dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Ints


@dataclass(frozen=True)
class Selection:
    """Reason codes (N,) and their sentences: 0 is kept, i is dropped because of `labels[i - 1]`.

    >>> verdict = Selection(np.array([0, 2]), ("too easy", "too hard"))
    >>> verdict.kept.tolist(), verdict.reasons.to_pylist()
    ([True, False], [None, 'too hard'])
    """

    code: Ints
    labels: tuple[str, ...]

    @property
    def kept(self) -> Bools:
        """Return a mask of the rows that stay, (N,)."""
        return self.code == 0

    @property
    def reasons(self) -> pa.Array:
        """Return the reason why each row is dropped, as Arrow text (N,); null for a row that stays."""
        return pa.array([None, *self.labels], pa.string()).take(pa.array(self.code))

    def counts(self) -> dict[str, int]:
        """Dropped rows per reason, reasons that dropped none left out; equal sentences are counted together."""
        totals: dict[str, int] = {}
        for label, count in zip(self.labels, np.bincount(self.code, minlength=len(self.labels) + 1)[1:], strict=True):
            if count:
                totals[label] = totals.get(label, 0) + int(count)
        return totals


def selection(num_rows: int, refusals: Sequence[tuple[Bools, str]]) -> Selection:
    """A verdict from (mask, reason) pairs; the first mask that is true of a row gives its reason."""
    code = np.zeros(num_rows, dtype=np.int64)
    for index, (mask, _) in enumerate(refusals, start=1):
        code[(code == 0) & mask] = index
    return Selection(code, tuple(label for _, label in refusals))
