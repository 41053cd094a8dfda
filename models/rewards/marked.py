"""Verdicts that mark parts of the completion.

Apart from gradus.models.rewards.base, whose source is part of the identity of every reward that marks nothing.
"""

from dataclasses import dataclass

from gradus.components.marks import Mark
from gradus.models.rewards.base import Verdict


@dataclass(frozen=True)
class MarkedVerdict(Verdict):
    """A verdict with parts of the completion that it means, over characters."""

    marks: tuple[Mark, ...] = ()


def marks_of_verdict(verdict: Verdict) -> tuple[Mark, ...]:
    """Return the marks of a verdict; none of one that has none."""
    return verdict.marks if isinstance(verdict, MarkedVerdict) else ()
