"""Agreement of two judges on the same rows, in numbers.

kappa_interval(first, second, cluster)      # Cohen's kappa of verdicts (N,), rows of a problem taken together
change_of(share, round)                     # the round from which groups hold more disagreement
search([1, 2, ..., 10], audit)              # the same of a costly auditor, by few of its verdicts

`audit(5)` judges some rows of round 5 and returns Audited(5, 16, 7). The first and the last round are audited; if they
differ, the middle of the rounds between them, and so on: an audited round counts as later if its count is likelier at
the rate of those after than at the rate of those before.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.intervals import LEVEL, Mean
from gradus.data.records import Figure

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

    The standard error is the jackknife's over clusters 0..G-1 (Efron and Stein 1981), whose rows depend on each other,
    the quantile Student's (G - 1). With one cluster, or if leaving one out leaves it undefined, it is all of [-1, 1].
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

    The split is that where (mean after - mean before) sqrt(n_before n_after / n) is largest: of the least squares among
    the rises. Its p value is that of a permutation test of this largest value, with a seed of its own, no smaller than
    1/2,000. While it is at most LEVEL, the part before is split too: a policy that finds a hole uses it more and more.
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


class Audited(TypedDict):
    """An audited round: rows that the auditor judged, and those on which it disagrees with the run's own verdict."""

    round: int
    rows: int
    differ: int


class Bisection(TypedDict):
    """The round from which they disagree more often, null if the last round does not differ from the first.

    `p` is that of Fisher's exact test, one-sided: all audited rows from that round on against those before it; without
    such a round those of the last against those of the first.
    """

    round: int | None
    p: float
    audited: list[Audited]


class Bisected(TypedDict):
    """The answer of `gradus bisect --json`: what was found, or the rows that are to be labelled before."""

    run: str
    found: Bisection | None
    labels: str | None
    to_label: int


def search(rounds: Sequence[int], audit: Callable[[int], Audited]) -> Bisection:
    """Return the first round of the later rate; ValueError for fewer than two rounds."""
    if len(rounds) < 2:
        raise ValueError("one round alone has no earlier one")
    low, high = 0, len(rounds) - 1
    found = {at: audit(rounds[at]) for at in (low, high)}

    def total(places: range) -> Audited:
        there = [found[at] for at in places if at in found]
        rows, differ = (sum(each[name] for each in there) for name in ("rows", "differ"))
        return {"round": 0, "rows": rows, "differ": differ}

    alone = fisher(found[high], found[low])
    if alone > LEVEL:
        return {"round": None, "p": alone, "audited": [found[low], found[high]]}
    while high - low > 1:
        middle = (low + high) // 2
        found[middle] = audit(rounds[middle])
        before, after = total(range(low + 1)), total(range(high, len(rounds)))
        if _log_likelihood(found[middle], after) > _log_likelihood(found[middle], before):
            high = middle
        else:
            low = middle
    before, after = total(range(low + 1)), total(range(high, len(rounds)))
    return {"round": rounds[high], "p": fisher(after, before), "audited": [found[at] for at in sorted(found)]}


def fisher(one: Audited, other: Audited) -> float:
    """Return the chance of at least as many disagreements in `one`, if they fell on the rows of both at random.

    Fisher, "The logic of inductive inference", 1935: the upper tail of the hypergeometric distribution.
    """
    total, differ = one["rows"] + other["rows"], one["differ"] + other["differ"]
    ways = math.comb(total, one["rows"])
    tail = range(one["differ"], min(differ, one["rows"]) + 1)
    return sum(math.comb(differ, k) * math.comb(total - differ, one["rows"] - k) for k in tail) / ways


def _log_likelihood(audited: Audited, rate: Audited) -> float:
    """Log-likelihood of a count at a rate, which half a row on each side keeps from 0 and 1."""
    share = (rate["differ"] + 0.5) / (rate["rows"] + 1)
    return audited["differ"] * math.log(share) + (audited["rows"] - audited["differ"]) * math.log1p(-share)


def chosen_rows(right: Bools, doubted: Bools, num_rows: int, rng: np.random.Generator) -> Ints:
    """Return at most `num_rows` rows to audit: doubted ones (N,) first, then right (N,) and wrong ones in turn.

    A cheaper verifier doubts the run's own verdicts; `rng` decides among rows alike.
    """
    order = rng.permutation(len(right))
    place = np.zeros(len(right), np.int64)
    for kind in (doubted, ~doubted & right, ~doubted & ~right):
        of_kind = order[kind[order]]
        place[of_kind] = np.arange(len(of_kind))
    return np.lexsort((order, ~right, place, ~doubted))[:num_rows].astype(np.int64)
