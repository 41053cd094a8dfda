"""Knowledge points of a problem, and the constrained search for the few of them that are enough (KnowRL).

A subset of K points is a whole number: point k belongs to it if bit k is set; all of them are 2^K - 1.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain, combinations, islice

from gradus.data.hints.leaks import leaks

MAX_POINTS = 30


def points_of(extra: str | None, answer: str | None, question: str | None) -> list[str]:
    """Return the points that a problem's `extra` names, "knowledge" or else the first of "tiers"; none that leaks."""
    fields = json.loads(extra or "{}")
    tiers = fields.get("tiers")
    named = fields.get("knowledge") or (tiers[0] if isinstance(tiers, list) and tiers else [])
    points = [point.strip() for point in (named if isinstance(named, list) else [named]) if isinstance(point, str)]
    return [point for point in points if point and not leaks(point, answer or "", question or "")][:MAX_POINTS]


def chosen_points(points: list[str], subset: int) -> str:
    """Return the text of a subset of points, a line each."""
    return "\n".join(point for k, point in enumerate(points) if subset >> k & 1)


def next_subsets(accuracy: Mapping[int, float], num: int, delta: float, most: int) -> list[int]:
    """Return the subsets of `num` points to be tried next, at most `most`: all and all but one, then the family."""
    full = 2**num - 1
    first = [full, *(full - 2**k for k in range(num))]
    left = [each for each in first if each not in accuracy]
    further = left or (each for each in _family(accuracy, num, delta) if each not in accuracy)
    return list(islice(further, most))


def smallest_enough(accuracy: Mapping[int, float], num: int, delta: float) -> int:
    """Return the subset of fewest points whose accuracy is within `delta` of the best of a family (KnowRL, CSS).

    The family are all points less any of those without which the accuracy falls by at most `delta`. Of equally small
    ones the best counts, then the one that keeps earlier points. `accuracy` has that of all points.
    """
    full, spare = 2**num - 1, sum(_spare(accuracy, num, delta))
    tried = [each for each in accuracy if each == full or not (full - each) & ~spare]
    best = max(accuracy[each] for each in tried)
    enough = [each for each in tried if accuracy[each] >= best - delta]
    return min(enough, key=lambda each: (each.bit_count(), -accuracy[each], each))


def _family(accuracy: Mapping[int, float], num: int, delta: float) -> Iterator[int]:
    """Yield all points less one or more of the dispensable ones, fewest left out first: up to 2^num subsets."""
    full, spare = 2**num - 1, _spare(accuracy, num, delta)
    sizes = (combinations(spare, size) for size in range(1, len(spare) + 1))
    return (full - sum(left) for left in chain.from_iterable(sizes))


def _spare(accuracy: Mapping[int, float], num: int, delta: float) -> list[int]:
    """Return the bits of the points without which the accuracy falls by at most `delta`."""
    full = 2**num - 1
    return [2**k for k in range(num) if accuracy.get(full - 2**k, -1.0) - accuracy[full] >= -delta]
