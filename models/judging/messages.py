"""Messages between a judge and its parent, distinguished by their keys.

To the judge: first `spec`, `item_timeout_s` and `memory_bytes`, then batches, {"rows": [...]}. From it: {"ready": true}
once, the verdict on row `at` of the batch (`Judged`), {"one_by_one": true} if a batch raised and its rows follow, each
with a time limit of its own, and {"fatal": "..."} if it cannot start, or cannot continue.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from gradus.components.marks import Mark
from gradus.models.rewards.base import Outcome, Verdict
from gradus.models.rewards.marked import MarkedVerdict, marks_of_verdict


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


def verdict_of(message: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a message."""
    marks = tuple(Mark(*each) for each in message["marks"])
    said = message["value"], message["outcome"], message["extracted"], message["error"], message["abstains"]
    return MarkedVerdict(*said, marks) if marks else Verdict(*said)
