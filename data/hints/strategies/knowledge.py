"""Knowledge points that help with a problem, as few as are enough (KnowRL)."""

import math

from gradus.components import component
from gradus.data.hints.points import chosen_points, points_of
from gradus.data.records import Problem


@component("hint", paper="KnowRL", needs=("know_rl.kept",), shown="## Hint")
def knowledge(problem: Problem, fraction: float) -> str | None:  # noqa: ARG001 - the search decides how much
    """Return the knowledge points that the tracker `know_rl` keeps, all of them until the search has come to it.

    Points are read from `extra`: {"knowledge": [point, ...]}, or the first of its "tiers".
    """
    points = points_of(problem["extra"], problem["answer"], problem["question"])
    kept = problem.get("know_rl.kept")
    subset = int(kept) if isinstance(kept, float) and not math.isnan(kept) else 2 ** len(points) - 1
    return chosen_points(points, subset) + "\n" if points and subset else None
