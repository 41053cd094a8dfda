"""A user's own reward: `path/to/file.py:function`, called with a batch of rows.

    def by_length(rows: list[dict]) -> list[float | None]:
        return [1.0 if len(row["completion"]) < 200 else 0.0 for row in rows]

    def graded(rows: list[dict]) -> list[dict]:
        return [{"value": 0.7, "correct": True, "extracted": "34"} for row in rows]

The file is loaded in a judge process only, with its folder on the import path and an empty folder as working directory.
A row has problem_id, completion, answer, question and every other column of the rollouts file that is not null.
One answer a row: a number; None, which means that the row could not be judged (an error on that row, as are NaN and
infinity); or a mapping with

    value      a number or None, as above; required
    correct    True or False: the verdict, whatever the value; None: no claim about this row, whatever the value;
               left out: a stated threshold (`correct_at`) or the values 1 and 0 decide, as for a number alone
    extracted  the answer read from the completion, as text; optional
    marks      parts of the completion, a list of mappings with name, start and end (characters: completion[start:end]),
               and optionally value, a number, and label, a text

A mapping with another key, or with another kind of value, is an error on that row.
An answer must not depend on the other rows of the batch: batches are cut by size, and rows are judged alone where a
batch raises, to find the ones at fault.
"""

import math
import numbers
from collections.abc import Callable, Mapping

from gradus.components.marks import MarkError, marks_of, plain
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Verdict, failed
from gradus.models.rewards.marked import MarkedVerdict

Batch = list[dict[str, object]]

RewardFunction = Callable[[Batch], object]

_KEYS = ("value", "correct", "extracted", "marks")
UNABLE = "the function returned None: it could not judge this row"


class BatchRefusedError(ValueError):
    """The function returned values that cannot be matched with the rows."""


def judge_batch(function: RewardFunction, rows: Batch) -> list[Verdict]:
    """The answers of a batch as verdicts; BatchRefusedError if there is not exactly one answer a row."""
    sizes = [len(str(row.get("completion") or "")) for row in rows]  # the function may change its rows
    returned = function(rows)
    if callable(as_list := getattr(returned, "tolist", None)):
        returned = as_list()
    if not isinstance(returned, list | tuple):
        raise BatchRefusedError(f"the function returned {type(returned).__name__}, not a list of numbers")
    if len(returned) != len(rows):
        raise BatchRefusedError(f"the function returned {len(returned)} values for {len(rows)} rows")
    return [_verdict(value, size) for value, size in zip(returned, sizes, strict=True)]


def _verdict(answer: object, num_chars: int) -> Verdict:
    """The verdict of one answer on a completion; a mapping that cannot be read is an error on its row."""
    if not isinstance(answer, Mapping):
        return _of_value(answer)
    correct, extracted = plain(answer.get("correct")), answer.get("extracted")
    wrong = _complaint(answer, correct, extracted)
    if wrong:
        return failed(f"the function returned {wrong}")
    verdict = _of_value(answer["value"])
    if verdict.value is None:
        return verdict
    try:
        marks = marks_of(answer.get("marks"), num_chars, "characters")
    except MarkError as error:
        return failed(f"the function returned {error}")
    outcome = "" if correct is None else "correct" if correct else "wrong"
    shown = None if extracted is None else extracted[:MAX_EXTRACTED_CHARS]
    abstains = "correct" in answer and correct is None
    said = Verdict(verdict.value, outcome, shown, abstains=abstains)
    return MarkedVerdict(**vars(said), marks=marks) if marks else said


def _complaint(given: Mapping[object, object], correct: object, extracted: object) -> str:
    """Return the fault in a mapping; empty if it can be read."""
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        return f"the key {unknown[0]!r}: the keys are {', '.join(_KEYS)}"
    if "value" not in given:
        return "a mapping without the key 'value'"
    if not isinstance(correct, bool | None):
        return f"{correct!r} as 'correct', not True, False or None"
    return "" if isinstance(extracted, str | None) else f"{type(extracted).__name__} as 'extracted', not text"


def _of_value(value: object) -> Verdict:
    value = plain(value)
    if value is None:
        return failed(UNABLE)
    if not isinstance(value, numbers.Real):
        return failed(f"the function returned {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        return failed("the function returned a number too large for a double")
    return Verdict(number) if math.isfinite(number) else failed(f"the function returned {number}")
