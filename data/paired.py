"""Comparing methods on the same problems: difficulty bands, wins."""

import numpy as np

from gradus.data.arrays import Bools, Floats, Ints

BANDS = ("never solved", "less than half", "half or more", "always solved")
"""Difficulty by the pass rate of the starting policy: 0, below 0.5, below 1, 1."""


def difficulty_band(rate: Floats) -> Ints:
    """Return the index into BANDS of each problem (P,), by the starting policy's pass rate."""
    return np.select([rate <= 0, rate < 0.5, rate < 1], [0, 1, 2], 3).astype(np.int64)


def sole_winners(rate: Floats) -> Bools:
    """Return which method alone has the highest pass rate at each problem; `rate` and the result are (methods, P)."""
    best = rate >= rate.max(axis=0) - 1e-12  # means over seeds differ by rounding
    return best & (best.sum(axis=0) == 1)
