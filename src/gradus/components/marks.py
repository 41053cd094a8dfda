"""Marked parts of a completion, as functions of users return them.

    marks_of([{"name": "step", "start": 0, "end": 9, "value": 1.0}], 40, "characters")

A mark is a mapping with `name`, `start` and `end` (half-open, characters in a reward, tokens in a shape), and
optionally `value`, a number, and `label`, a text. Light: judge processes import it.
"""

import math
import numbers
from collections.abc import Mapping
from typing import NamedTuple

MAX_MARKS = 10_000
"""Marks of a completion at most."""
MAX_NAME_CHARS = 100
MAX_LABEL_CHARS = 1000
"""Longer labels are cut."""


class Mark(NamedTuple):
    """A marked part of a completion: a half-open range, with a number and a text of it if there are such."""

    name: str
    start: int
    end: int
    value: float | None = None
    label: str | None = None


class MarkError(ValueError):
    """A mark that cannot be read; its text follows "it returned"."""


def marks_of(given: object, size: int, unit: str) -> tuple[Mark, ...]:
    """Return the marks of a completion of `size` units; MarkError with the fault of the first that cannot be read."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise MarkError(f"{type(given).__name__} as 'marks', not a list")
    if len(given) > MAX_MARKS:
        raise MarkError(f"{len(given):,} marks of a completion, of which there may be {MAX_MARKS:,}")
    return tuple(_mark(each, size, unit) for each in given)


def _mark(given: object, size: int, unit: str) -> Mark:
    if not isinstance(given, Mapping):
        raise MarkError(f"{type(given).__name__} as a mark, not a mapping with {', '.join(Mark._fields)}")
    if unknown := [key for key in given if key not in Mark._fields]:
        raise MarkError(f"the key {unknown[0]!r} in a mark: the keys are {', '.join(Mark._fields)}")
    name, start, end, value, label = (plain(given.get(key)) for key in Mark._fields)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise MarkError(f"a mark whose name is not text of 1 to {MAX_NAME_CHARS} characters")
    if not (type(start) is int and type(end) is int):
        raise MarkError(f"a mark {name!r} whose start and end are not whole numbers")
    if not 0 <= start <= end <= size:
        raise MarkError(f"a mark {name!r} from {start} to {end} of a completion of {size:,} {unit}")
    if not isinstance(label, str | None):
        raise MarkError(f"a mark {name!r} whose label is {type(label).__name__}, not text")
    return Mark(name, start, end, _number(name, value), label and label[:MAX_LABEL_CHARS])


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if type(value) is not bool and isinstance(value, numbers.Real):
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass
    raise MarkError(f"a mark {name!r} whose value is {str(value)[:MAX_NAME_CHARS]!r}, not a finite number")


def plain(value: object) -> object:
    """Return a scalar of NumPy or PyTorch as Python's own; anything else as it is."""
    as_scalar = getattr(value, "item", None)
    return as_scalar() if as_scalar is not None and getattr(value, "shape", None) == () else value
