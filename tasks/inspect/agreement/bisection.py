"""The round from which a costly auditor disagrees more often with a run's own verdicts, found by few of its verdicts.

    found = search([1, 2, ..., 10], audit)      # audit(5) judges some rows of round 5 and returns Audited(5, 16, 7)

The first and the last round are audited; if they differ, the middle of the rounds between them, and so on: an audited
round counts as later if its count is likelier at the rate of those after than at the rate of those before.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from gradus.data.arrays import Bools, Ints
from gradus.data.intervals import LEVEL


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
    found = {at: audit(rounds[at]) for at in (0, len(rounds) - 1)}
    low, high = 0, len(rounds) - 1
    alone = fisher(found[high], found[low])
    if alone > LEVEL:
        return {"round": None, "p": alone, "audited": [found[low], found[high]]}
    while high - low > 1:
        middle = (low + high) // 2
        found[middle] = audit(rounds[middle])
        before = _total([each for at, each in found.items() if at <= low])
        after = _total([each for at, each in found.items() if at >= high])
        if _log_likelihood(found[middle], after) > _log_likelihood(found[middle], before):
            high = middle
        else:
            low = middle
    before = _total([each for at, each in found.items() if at <= low])
    after = _total([each for at, each in found.items() if at >= high])
    return {"round": rounds[high], "p": fisher(after, before), "audited": [found[at] for at in sorted(found)]}


def fisher(one: Audited, other: Audited) -> float:
    """Return the chance of at least as many disagreements in `one`, if they fell on the rows of both at random.

    Fisher, "The logic of inductive inference", 1935: the upper tail of the hypergeometric distribution.
    """
    total, differ = one["rows"] + other["rows"], one["differ"] + other["differ"]
    ways = math.comb(total, one["rows"])
    tail = range(one["differ"], min(differ, one["rows"]) + 1)
    return sum(math.comb(differ, k) * math.comb(total - differ, one["rows"] - k) for k in tail) / ways


def _total(audited: Sequence[Audited]) -> Audited:
    return {
        "round": 0,
        "rows": sum(each["rows"] for each in audited),
        "differ": sum(each["differ"] for each in audited),
    }


def _log_likelihood(audited: Audited, rate: Audited) -> float:
    """Log-likelihood of a count at a rate, which half a row on each side keeps from 0 and 1."""
    share = (rate["differ"] + 0.5) / (rate["rows"] + 1)
    return audited["differ"] * math.log(share) + (audited["rows"] - audited["differ"]) * math.log1p(-share)


def chosen_rows(right: Bools, doubted: Bools, num_rows: int, rng: np.random.Generator) -> Ints:
    """Return the rows of a round to audit, at most `num_rows`: doubted ones first, then right and wrong ones in turn.

    Args:
        right: The run's own verdicts (N,).
        doubted: Rows on which a cheaper verifier disagrees with them (N,).
        num_rows: Rows at most.
        rng: Decides among rows alike.
    """
    order = rng.permutation(len(right))
    place = np.zeros(len(right), np.int64)
    for kind in (doubted, ~doubted & right, ~doubted & ~right):
        of_kind = order[kind[order]]
        place[of_kind] = np.arange(len(of_kind))
    return np.lexsort((order, ~right, place, ~doubted))[:num_rows].astype(np.int64)
