"""The columns of a user's file as those of a table: every value looked at, the first that cannot be named by its row.

Arrow alone would cut 1.5 to 1 in a column of whole numbers, read true as 1 and bytes as a list of numbers.
"""

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa

from gradus.data.errors import BadInputError, shortened
from gradus.data.lake.schema import Column

_INT_BITS = 64
_NUMBERS: frozenset[type] = frozenset({int, float, Decimal})


def column_of(column: Column, values: Sequence[object], places: Sequence[str]) -> pa.Array:
    """Return the values of a column in its type; raise BadInputError that names the first row with another value."""
    holds = _holding(column.type)
    for value, place in zip(values, places, strict=True):
        if value is not None and not (holds(value) and _within(column, value)):
            raise _unfit(column, value, place)
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for value, place in zip(values, places, strict=True):
            if not _fits(value, column.type):
                raise _unfit(column, value, place) from None
        raise


def other_column(name: str, values: Sequence[object], places: Sequence[str], *, is_text: bool) -> pa.Array:
    """Return the values of a column that the table does not have: in their own type, or as JSON if they have several.

    A text of a problem that stands beside a rollout (`is_text`) is a text or a finite number.
    """
    for value, place in zip(values, places, strict=True) if is_text else ():
        if value is not None and text_of(value) is None:
            raise BadInputError(f"{place}: {name} is {shown(value)}", hint="write a text or a number")
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.array([json.dumps(value, default=str) for value in values])


def text_of(value: object) -> str | None:
    """Return a text, or a number as one; None for anything else, also for a number that is not finite.

    >>> text_of(1.5), text_of(float("nan")), text_of(["2"])
    ('1.5', None, None)
    """
    if isinstance(value, str | int):
        return str(value)
    return str(value) if isinstance(value, float | Decimal) and math.isfinite(value) else None


def is_finite(value: float) -> bool:
    """Return True for a finite number that a double can hold.

    >>> is_finite(10**308), is_finite(10**400)
    (True, False)
    """
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: object) -> str:
    """Return a value as a sentence shows it, for any reader.

    >>> shown(True), shown("many"), shown([1, 2])
    ('true', "'many'", 'a list')
    """
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(shortened(value))
    if type(value) in _NUMBERS:
        is_long = isinstance(value, int) and value.bit_length() >= _INT_BITS
        return "a number of over 64 bits" if is_long else str(value)
    kinds: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("a date or a time", (dt.date, dt.time, dt.timedelta)),
        ("an object", (Mapping,)),
        ("a list", (list, tuple)),
    )
    return next((name for name, kind in kinds if isinstance(value, kind)), "bytes")


def _unfit(column: Column, value: object, place: str) -> BadInputError:
    given, shows = cast("list[object]", value), shown(value)
    if isinstance(value, list) and pa.types.is_list(column.type):
        holds = _holding(column.type)
        odd = next((part for part in given if part is None or not (holds([part]) and _within(column, [part]))), None)
        shows = f"a list with {'null' if odd is None else shown(odd)}"
    return BadInputError(f"{place}: {column.name} is {shows}", hint=f"write {column.wanted}")


def _fits(value: object, wanted: pa.DataType) -> bool:
    try:
        pa.array([value], wanted)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return False
    return True


def _holding(wanted: pa.DataType) -> Callable[[object], bool]:
    """Return what says whether a value is one of a type, as far as Arrow does not say it."""
    if pa.types.is_list(wanted):
        return _holding_list(wanted.value_type)
    if pa.types.is_integer(wanted):
        return lambda value: type(value) is int or (isinstance(value, float) and value.is_integer())
    if pa.types.is_floating(wanted):
        return lambda value: type(value) in _NUMBERS and is_finite(cast("float", value))
    if pa.types.is_boolean(wanted):
        return lambda value: type(value) is bool
    return (lambda value: type(value) is str) if wanted == pa.string() else lambda _: True


def _holding_list(inner: pa.DataType) -> Callable[[object], bool]:
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        return lambda value: isinstance(value, list)
    alone, plain = _holding(inner), {float} if pa.types.is_floating(inner) else {int}

    def holds(value: object) -> bool:
        if not isinstance(value, list):
            return False
        parts = cast("list[object]", value)
        # Lists of plain finite numbers of one type, as most are, are known by types and sum, without a call for each.
        kinds = set(map(type, parts))
        if kinds <= {int} or (kinds <= plain and math.isfinite(sum(cast("list[float]", parts)))):
            return True
        return all(part is not None and alone(part) for part in parts)

    return holds


def _within(column: Column, value: object) -> bool:
    """Return whether the numbers of a value are within the bounds of its column."""
    if column.low is column.high is column.above is None:
        return True
    if not (numbers := cast("list[float]", value if isinstance(value, list) else [value])):
        return True
    low, high = min(numbers), max(numbers)
    return (
        (column.low is None or low >= column.low)
        and (column.high is None or high <= column.high)
        and (column.above is None or low > column.above)
    )
