"""Agreement of two judges on the same rows, in numbers.

kappa_interval(first, second, cluster)      # Cohen's kappa of verdicts (N,), rows of a problem taken together
change_of(share, round)                     # the round from which groups hold more disagreement
"""

from typing import TypedDict

import numpy as np

from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.intervals import LEVEL, Mean
from gradus.data.records import Figure

BOTH_RIGHT, ONLY_FIRST, ONLY_SECOND, BOTH_WRONG = range(4)
_PERMUTATIONS = 1999
_ROUNDING = 1e-12


def counts_of(first: Bools, second: Bools) -> Ints:
    """Return the numbers of rows that both, the first alone, the second alone and neither take for right, (4,)."""
    return np.bincount(2 * ~first + ~second, minlength=4).astype(np.int64)


def kappa(counts: Floats | Ints) -> Floats:
    """Return Cohen's kappa of (..., 4) counts: (p_o - p_e) / (1 - p_e), NaN where both judges have one verdict alone.

    Cohen, Educational and Psychological Measurement 20, 1960: p_o is the share of equal verdicts, p_e that of two
    judges who decide by chance, each as often for right as it does.
    """
    both, first, second, neither = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    total = both + first + second + neither
    with np.errstate(invalid="ignore", divide="ignore"):
        equal = (both + neither) / total
        chance = ((both + first) * (both + second) + (neither + first) * (neither + second)) / total**2
        return np.where(chance < 1, (equal - chance) / (1 - chance), np.nan)


def kappa_interval(first: Bools, second: Bools, cluster: Ints) -> Figure | None:
    """Return kappa with its interval of 95 %; None if it is not defined, as where both find every row right.

    The standard error is that of the jackknife over clusters 0..G-1 (Efron and Stein 1981), whose rows are not
    independent of each other; the quantile is Student's with G - 1 degrees of freedom. With one cluster, or if leaving
    one out leaves it undefined, the interval is all of [-1, 1].
    """
    size = int(cluster.max(initial=-1)) + 1
    each = np.zeros((size, 4))
    np.add.at(each, (cluster, 2 * ~first + ~second), 1.0)
    value = float(kappa(each.sum(axis=0)))
    if np.isnan(value):
        return None
    without = kappa(each.sum(axis=0) - each)
    if size < 2 or np.isnan(without).any():
        return {"value": value, "low": -1.0, "high": 1.0}
    error = float(np.sqrt((size - 1) / size * ((without - without.mean()) ** 2).sum()))
    return Mean(value, error, float(size - 1), span=1.0).interval()


class Change(TypedDict):
    """The round from which the mean of groups is higher, the means before and from it on, and its p value."""

    round: int
    before: float
    after: float
    p: float


def change_of(share: Floats, round: Ints) -> Change | None:
    """Return where the shares (G,) of groups first rise, by their rounds (G,); None if they do not, or of one round.

    The rounds are split in two parts where (mean after - mean before) sqrt(n_before n_after / n) is largest, which is
    the split of the least squares among the rises. The p value is that of a permutation test of this largest value over
    all splits: without a change the groups are exchangeable. While it is at most LEVEL, the part before is split in the
    same way, since a policy that finds a hole uses it more and more (binary segmentation). Permutations are drawn with
    a seed of their own, so that the same shares have the same p, which is no smaller than 1 / 2,000.
    """
    found = None
    earlier = _rise(share, round)
    while earlier is not None and (found is None or earlier[1] <= LEVEL):
        first, p = found = earlier
        earlier = _rise(share[round < first], round[round < first]) if p <= LEVEL else None
    if found is None:
        return None
    first, p = found
    before, after = (float(share[part].mean()) for part in (round < first, round >= first))
    return {"round": first, "before": before, "after": after, "p": p}


def _rise(share: Floats, round: Ints) -> tuple[int, float] | None:
    """Return the round of the best split and its p value; None if the shares do not rise."""
    order = np.argsort(round, kind="stable")
    values, num = share[order], len(share)
    before = np.flatnonzero(np.diff(round[order])) + 1
    if not len(before):
        return None
    weight = np.sqrt(before * (num - before) / num)

    def rises(shares: Floats) -> Floats:
        sums = np.cumsum(shares)
        return ((sums[-1] - sums[before - 1]) / (num - before) - sums[before - 1] / before) * weight

    found = rises(values)
    at = int(np.argmax(found))
    if found[at] <= _ROUNDING:
        return None
    rng = np.random.default_rng(0)
    larger = sum(rises(rng.permutation(values)).max() >= found[at] - _ROUNDING for _ in range(_PERMUTATIONS))
    return int(round[order][before[at]]), (1 + larger) / (1 + _PERMUTATIONS)
