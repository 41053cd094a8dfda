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

A mapping with another key, or with another kind of value, is an error on that row.
An answer must not depend on the other rows of the batch: batches are cut by size, and rows are judged alone where a
batch raises, to find the ones at fault.
"""

import hashlib
import importlib.util
import math
import numbers
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import cast

from gradus.models.rewards import USER_MODULE
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Verdict, failed

Batch = list[dict[str, object]]

RewardFunction = Callable[[Batch], object]

_KEYS = ("value", "correct", "extracted")
UNABLE = "the function returned None: it could not judge this row"


class RewardFileError(ValueError):
    """The user's file or function cannot be used."""


class BatchRefusedError(ValueError):
    """The function returned values that cannot be matched with the rows."""


def load_function(path: Path, function: str, sha256: str = "", settings: Mapping[str, object] = {}) -> RewardFunction:
    """Return the function of a file; raise RewardFileError if it is missing or not the one that the command saw."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise RewardFileError(f"{path} cannot be read: {error.strerror}") from error
    if sha256 and hashlib.sha256(source).hexdigest() != sha256:
        raise RewardFileError(f"{path} was changed while the command ran")
    spec = importlib.util.spec_from_file_location(USER_MODULE, path)
    if spec is None or spec.loader is None:
        raise RewardFileError(f"{path} is not a Python file")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RewardFileError(f"{path}{line_of(error.__traceback__, path)} fails to load: {describe(error)}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise RewardFileError(f"{path} has no function {function!r}")
    return partial(cast("RewardFunction", found), **settings)


def judge_batch(function: RewardFunction, rows: Batch) -> list[Verdict]:
    """The answers of a batch as verdicts; BatchRefusedError if there is not exactly one answer a row."""
    returned = function(rows)
    if callable(as_list := getattr(returned, "tolist", None)):
        returned = as_list()
    if not isinstance(returned, list | tuple):
        raise BatchRefusedError(f"the function returned {type(returned).__name__}, not a list of numbers")
    if len(returned) != len(rows):
        raise BatchRefusedError(f"the function returned {len(returned)} values for {len(rows)} rows")
    return [_verdict(value) for value in returned]


def line_of(trace: TracebackType | None, file: Path) -> str:
    """Return ` line N`, the last line of a file that a traceback passed; empty if it passed none."""
    found = ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            found = f" line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


def _verdict(answer: object) -> Verdict:
    """The verdict of one answer; a mapping that cannot be read is an error on its row."""
    if not isinstance(answer, Mapping):
        return _of_value(answer)
    correct, extracted = _plain(answer.get("correct")), answer.get("extracted")
    wrong = _complaint(answer, correct, extracted)
    if wrong:
        return failed(f"the function returned {wrong}")
    verdict = _of_value(answer["value"])
    if verdict.value is None:
        return verdict
    outcome = "" if correct is None else "correct" if correct else "wrong"
    shown = None if extracted is None else extracted[:MAX_EXTRACTED_CHARS]
    return Verdict(verdict.value, outcome, shown, abstains="correct" in answer and correct is None)


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
    value = _plain(value)
    if value is None:
        return failed(UNABLE)
    if not isinstance(value, numbers.Real):
        return failed(f"the function returned {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        return failed("the function returned a number too large for a double")
    return Verdict(number) if math.isfinite(number) else failed(f"the function returned {number}")


def _plain(value: object) -> object:
    """A scalar of NumPy or PyTorch as Python's own; anything else as it is."""
    as_scalar = getattr(value, "item", None)
    return as_scalar() if as_scalar is not None and getattr(value, "shape", None) == () else value
