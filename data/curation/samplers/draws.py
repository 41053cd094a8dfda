"""Draws without replacement: uniform, and in proportion to pass-rate variance with a share for exploration."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints, floats
from gradus.data.errors import UsageError


@dataclass(frozen=True)
class Draw:
    """Rows drawn, in draw order: indices (D,), the weight each had (D,), and whether it was explored (D,)."""

    index: Ints
    weight: Floats
    explored: Bools


def uniform(candidates: pa.Table, num: int, rng: np.random.Generator) -> Draw:
    """Draw rows with equal probability; every weight is 1."""
    index = _weighted(np.ones(candidates.num_rows), num, rng)
    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=np.bool_))


def variance(candidates: pa.Table, num: int, rng: np.random.Generator, *, explore_frac: float = 0.25) -> Draw:
    """Draw rows in proportion to p(1-p); a share of the draw goes uniformly to rows without variance or measurement.

    After MMR1's variance-aware sampling (arXiv 2509.21268): part of the batch weighted, part uniform for coverage.
    Deviations: without replacement, no text-diversity term, and the uniform part is drawn only from the rows that the
    weighted part can never reach. Where one part has too few rows, the other fills up; with explore_frac 0 the rows
    without variance are never drawn. Weights are 4p(1-p), and 1 for an explored row.
    """
    if not 0 <= explore_frac <= 1:
        raise UsageError(f"explore_frac is {explore_frac}, not between 0 and 1")
    weight = np.nan_to_num(4 * floats(candidates.column("variance")))
    reachable, unknown = np.flatnonzero(weight > 0), np.flatnonzero(weight == 0)
    num_unknown = min(len(unknown), round(num * explore_frac))
    num_reachable = min(len(reachable), num - num_unknown)
    if explore_frac > 0:
        num_unknown = min(len(unknown), num - num_reachable)
    first = reachable[_weighted(weight[reachable], num_reachable, rng)]
    second = unknown[_weighted(np.ones(len(unknown)), num_unknown, rng)]
    return Draw(
        index=np.concatenate((first, second)),
        weight=np.concatenate((weight[first], np.ones(len(second)))),
        explored=np.concatenate((np.zeros(len(first), dtype=np.bool_), np.ones(len(second), dtype=np.bool_))),
    )


def _weighted(weight: Floats, num: int, rng: np.random.Generator) -> Ints:
    """Row indices in draw order, each next one drawn in proportion to its weight among those left.

    Every row waits an exponential time of rate `weight`; the first to ring are the draw (Efraimidis and Spirakis,
    Information Processing Letters 97, 2006, with exponential instead of uniform keys).
    """
    waiting = rng.standard_exponential(len(weight)) / weight
    if num >= len(waiting):
        return np.argsort(waiting, kind="stable")
    first = np.argpartition(waiting, num)[:num]
    return first[np.argsort(waiting[first], kind="stable")]
