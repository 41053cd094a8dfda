"""Verdict of a reward on one completion."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["", "correct", "wrong", "unparsed", "timeout", "error"]
"""Outcome of judging; empty where a value was returned that makes no claim about correctness."""

Row = Mapping[str, Any]
"""One completion with what is known of it: completion, answer, problem_id, question and the file's other columns."""

MAX_EXTRACTED_CHARS = 1000
"""Longer extracted answers are cut: the column is for reading."""


@dataclass(frozen=True)
class Verdict:
    """One reward's word on one completion.

    `value` is None exactly where the outcome is timeout or error: a judge that failed says nothing, and never 0.
    A value alone (outcome empty) leaves correctness to gradus.models.rewards.combine, unless the reward `abstains`: it
    looked and cannot say whether the answer is correct, so no rule may say it in its place.

    >>> Verdict(value=1.0, outcome="correct", extracted="34")
    Verdict(value=1.0, outcome='correct', extracted='34', error='', abstains=False)
    """

    value: float | None
    outcome: Outcome = ""
    extracted: str | None = None
    error: str = ""
    abstains: bool = False


def judged(*, correct: bool, extracted: str) -> Verdict:
    """1 and correct, or 0 and wrong."""
    extracted = extracted[:MAX_EXTRACTED_CHARS]
    return Verdict(1.0, "correct", extracted) if correct else Verdict(0.0, "wrong", extracted)


def unparsed(extracted: str | None = None) -> Verdict:
    """0: the completion holds no answer that can be read."""
    return Verdict(0.0, "unparsed", extracted[:MAX_EXTRACTED_CHARS] if extracted else None)


def best(verdicts: Iterable[Verdict]) -> Verdict:
    """The first verdict that is correct, else that of the highest value, else the first: of one for each gold."""
    found: list[Verdict] = []
    for verdict in verdicts:
        if verdict.outcome == "correct":
            return verdict
        found.append(verdict)
    return max(found, key=lambda each: -math.inf if each.value is None else each.value)


def failed(error: str) -> Verdict:
    """No value: judging itself went wrong."""
    return Verdict(None, "error", None, error[:MAX_EXTRACTED_CHARS])
