"""Messages between a judge and its parent, a JSON line each; a judge's messages are distinguished by their keys."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from gradus.components.marks import Mark
from gradus.models.rewards.base import Outcome, Row, Verdict
from gradus.models.rewards.marked import MarkedVerdict, marks_of_verdict


class Hello(TypedDict):
    """The parent's first message: what to judge with, and the random word that every answer repeats."""

    nonce: str
    spec: Mapping[str, Any]
    item_timeout_s: float
    memory_bytes: int


class Batch(TypedDict):
    """Rows to judge."""

    rows: Sequence[Row]


class Fatal(TypedDict):
    """The judge cannot start, or cannot continue."""

    fatal: str


class Ready(TypedDict):
    """The judge has loaded its reward."""

    ready: bool


class OneByOne(TypedDict):
    """A batch raised: its rows follow, each with a time limit of its own."""

    one_by_one: bool


class Judged(TypedDict):
    """The verdict on row `at` of the batch."""

    at: int
    seconds: float
    value: float | None
    outcome: Outcome
    extracted: str | None
    error: str
    abstains: bool
    marks: Sequence[Sequence[Any]]


Message = Fatal | Ready | OneByOne | Judged


def judged(at: int, seconds: float, verdict: Verdict) -> Judged:
    """Return the message of a verdict."""
    return {
        "at": at,
        "seconds": seconds,
        "value": verdict.value,
        "outcome": verdict.outcome,
        "extracted": verdict.extracted,
        "error": verdict.error,
        "abstains": verdict.abstains,
        "marks": marks_of_verdict(verdict),
    }


def verdict_of(message: Judged) -> Verdict:
    """Return the verdict of a message."""
    marks = tuple(Mark(*each) for each in message["marks"])
    said = message["value"], message["outcome"], message["extracted"], message["error"], message["abstains"]
    return MarkedVerdict(*said, marks) if marks else Verdict(*said)
