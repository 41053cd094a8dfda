"""Comparing methods on the same problems: intervals over seeds and problems, difficulty bands, wins.

An array of values is (S, P): seeds of training x problems. Left out: intervals other than percentile.
"""

import numpy as np

from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.metrics import Interval

BANDS = ("never solved", "less than half", "half or more", "always solved")
"""Difficulty by the pass rate of the starting policy: 0, below 0.5, below 1, 1."""
_CHUNK = 1 << 21  # resampled indices held at once (16 MB)


def bootstrap_crossed(values: Floats, rng: np.random.Generator, *, resamples: int, confidence: float) -> Interval:
    """Mean of (S, P) values with its percentile interval; seeds and problems are resampled independently.

    The pigeonhole bootstrap (Owen, Annals of Applied Statistics 1, 2007), which is conservative: both the choice of
    the problems and the seeds of training count as chance. Differences of two methods on the same seeds and problems
    make it a paired interval. One seed leaves the bootstrap over problems alone. The interval always holds the value.
    Raise ValueError for no values or values that are not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError("an interval needs at least one seed and one problem, all values finite")
    num_seeds, num_problems = values.shape
    means = np.empty(resamples)
    step = max(1, _CHUNK // num_problems)
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        drawn = rng.integers(0, num_seeds, size=(size, num_seeds))
        weight = (drawn[:, :, None] == np.arange(num_seeds)).mean(axis=1)
        problems = rng.integers(0, num_problems, size=(size, num_problems))
        means[begin : begin + size] = np.take_along_axis(weight @ values, problems, axis=1).mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    value = float(values.mean())
    return Interval(value, min(float(low), value), max(float(high), value))


def difficulty_band(rate: Floats) -> Ints:
    """Return the index into BANDS of each problem (P,), by the starting policy's pass rate."""
    return np.select([rate <= 0, rate < 0.5, rate < 1], [0, 1, 2], 3).astype(np.int64)


def sole_winners(rate: Floats) -> Bools:
    """Return which method alone has the highest pass rate at each problem; `rate` and the result are (methods, P)."""
    best = rate >= rate.max(axis=0) - 1e-12  # means over seeds differ by rounding
    return best & (best.sum(axis=0) == 1)
