"""Results of filters, rankings and samplers, and the order in which they are used: filters, a ranking, a sampler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.components.rows import Rows
from gradus.data.arrays import Bools, Floats, Ints, ints, pc

DECIMALS = 12
"""Scores of a ranking that are equal so far rank alike: the smaller id comes first."""


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
    """Return a selection from (mask, reason) pairs; the first mask that is true of a row decides its reason."""
    code = np.zeros(num_rows, dtype=np.int64)
    for index, (mask, _) in enumerate(refusals, start=1):
        code[(code == 0) & mask] = index
    return Selection(code, tuple(label for _, label in refusals))


def apply_filters(candidates: Rows, filters: Sequence[Callable[[Rows], Selection]]) -> Selection:
    """Apply filters in order; a row is dropped by, and bears the reason of, the first that refuses it."""
    code: Ints = np.zeros(candidates.num_rows, dtype=np.int64)
    labels: list[str] = []
    for each in filters:
        verdict = each(candidates)
        refused: Bools = (code == 0) & ~verdict.kept
        code[refused] = verdict.code[refused] + len(labels)
        labels.extend(verdict.labels)
    return Selection(code, tuple(labels))


def rank(candidates: Rows, ranking: Callable[[Rows], Floats]) -> tuple[Ints, Floats]:
    """Return row indices from the highest score to the lowest (N,), and the scores of the rows in table order (N,).

    Ties are broken by problem_id; rows without a score come last, in the order of problem_id too. Scores are compared
    at `DECIMALS`, so that the same history in another order is a tie and not a rounding error apart.
    """
    scores = ranking(candidates)
    keys = pa.table(
        {
            "score": pa.array(np.round(scores, DECIMALS), mask=np.isnan(scores)),
            "problem_id": candidates.arrow("problem_id"),
        }
    )
    order = pc.sort_indices(keys, sort_keys=[("score", "descending", "at_end"), ("problem_id", "ascending", "at_end")])
    return ints(order), scores


@dataclass(frozen=True)
class Draw:
    """Rows drawn, in draw order: indices (D,), the weight each had (D,), and whether it was explored (D,)."""

    index: Ints
    weight: Floats
    explored: Bools
    in_order: bool = False
    """The rows were taken in the order of the candidates: nothing was drawn."""
