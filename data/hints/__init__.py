"""Hint strategies by name: `(problem, fraction or level) -> text or None`, and why there is none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.data.hints.prefix import prefix
from gradus.data.hints.tiers import tiers

Problem = Mapping[str, Any]
Strategy = Callable[[Problem, float], "str | None"]

STRATEGIES: dict[str, Strategy] = {"prefix": prefix, "tiers": tiers}


@dataclass(frozen=True)
class Hint:
    """One level of help for one problem."""

    problem_id: str
    level: int
    fraction: float
    text: str


def hints_of(problem: Problem, strategy: str, fractions: Sequence[float]) -> list[Hint]:
    """The hints of a problem, level 1 for the first fraction; levels that would leak are absent."""
    function = STRATEGIES[strategy]
    found = ((level, f, function(problem, f)) for level, f in enumerate(fractions, start=1))
    problem_id = problem["problem_id"]
    return [Hint(problem_id, level, fraction, text) for level, fraction, text in found if text]
