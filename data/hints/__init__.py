"""Hints of a problem: the texts of a strategy, a level each. A text that states the answer is not shown.

A strategy may declare that it reveals the answer: its hints are for waves that train for the problem's own prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradus.data.answers import further_golds
from gradus.data.hints.leaks import leaks
from gradus.data.records import Problem

REVEALS = "every hint would reveal the answer"
NONE = "the strategy has no hint"


@dataclass(frozen=True)
class NoHint:
    """Reason that a problem has no hint."""

    reason: str


Strategy = Callable[[Problem, float], "str | NoHint | None"]


@dataclass(frozen=True)
class Hint:
    """One level of help for one problem."""

    problem_id: str
    level: int
    fraction: float
    text: str
    leaks_answer: bool = False
    """True for every hint of a strategy that reveals the answer."""


def hints_of(
    problem: Problem, strategy: Strategy, fractions: Sequence[float], *, reveals: bool = False
) -> tuple[list[Hint], str]:
    """Return the hints of a problem, level 1 for the first fraction, and the reason if there are none.

    Texts of a strategy that does not say that it `reveals` the answer, and does, are left out.
    """
    if problem["answer"] is None:
        return [], "no gold answer"
    golds = [problem["answer"], *further_golds(problem.get("extra"))]
    hints: list[Hint] = []
    reason = NONE
    for level, fraction in enumerate(fractions, start=1):
        text = strategy(problem, fraction)
        if isinstance(text, NoHint):
            reason = text.reason
        elif text and not reveals and any(leaks(text, gold, problem["question"] or "") for gold in golds):
            reason = REVEALS
        elif text:
            hints.append(Hint(problem["problem_id"], level, fraction, text, reveals))
    return hints, "" if hints else reason


def states_early(problem: Problem) -> bool:
    """Return whether a step before the last states the gold answer, so that hints end before it."""
    steps = [line for line in (problem["solution"] or "").split("\n") if line.strip()]
    early, golds = "\n".join(steps[:-1]), [problem["answer"] or "", *further_golds(problem.get("extra"))]
    return bool(steps[1:]) and any(leaks(early, gold, problem["question"] or "") for gold in golds)
