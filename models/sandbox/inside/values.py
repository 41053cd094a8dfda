"""Values of Python as JSON and back, by exact kind: what crosses between a program and its tests.

Numbers, texts, bytes, None, lists, tuples, dicts, sets. An object of another class is refused, so nothing that crosses
has code of its own.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

_MAX_DEPTH = 100
_NUM_VARIABLES, _VARIABLE_CHARS = 3, 200
MAX_VARIABLES_CHARS = _NUM_VARIABLES * _VARIABLE_CHARS
"""Length of variables as JSON."""
_PLAIN = (int, float, str, bool, type(None), list, tuple, dict)


def encoded(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON: lists as they are, other containers as {"kind": ...}; TypeError for what cannot cross."""
    if value is None or isinstance(value, bool):
        return value
    for classes, made in _SCALARS:
        if isinstance(value, classes):
            return made(value)
    if depth > _MAX_DEPTH:
        raise TypeError(f"it is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, dict):
        return {"dict": [[encoded(key, depth + 1), encoded(held, depth + 1)] for key, held in value.items()]}
    for kind, classes in _SEQUENCES.items():
        if isinstance(value, classes):
            items = [encoded(each, depth + 1) for each in value]
            return items if kind == "list" else {kind: items}
    raise TypeError(f"a value of class {type(value).__name__} cannot be compared")


_SCALARS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (str, str),
    (int, int),
    (float, lambda value: {"float": repr(float(value))}),
    ((bytes, bytearray), lambda value: {"bytes": bytes(value).hex()}),
    (complex, lambda value: {"complex": [repr(value.real), repr(value.imag)]}),
)
_SEQUENCES: dict[str, type | tuple[type, ...]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def decoded(value: Any) -> Any:
    """Return the value of what `encoded` made; ValueError or TypeError for anything else."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    return _DECODERS[kind](held)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*map(float, parts)),
    "dict": lambda pairs: {decoded(key): decoded(value) for key, value in pairs},
    "tuple": lambda items: tuple(decoded(each) for each in items),
    "set": lambda items: {decoded(each) for each in items},
    "frozenset": lambda items: frozenset(decoded(each) for each in items),
}


def last_variables(names: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the last three variables whose values are short and plain; names that start with _ are left out."""
    found = dict[str, Any]()
    for name, value in reversed([*names.items()]):
        if len(found) < _NUM_VARIABLES and type(name) is str and name.isidentifier() and not name.startswith("_"):
            found |= {name: value} if _is_short({name: value}) else {}
    return dict(reversed(found.items()))


def _is_short(value: Any) -> bool:
    """Return whether a value is of plain kinds through and through, and its JSON short, without running its code."""
    parts = [value]
    for part in parts:
        kind = type(part)
        if not any(kind is plain for plain in _PLAIN) or len(parts) > _VARIABLE_CHARS:
            return False
        size = part.bit_length() // 4 if kind is int else 0 if kind in (float, bool, type(None)) else len(part)
        if size > _VARIABLE_CHARS:
            return False
        parts += [*part, *part.values()] if kind is dict else part if kind in (list, tuple) else []
    try:
        return len(json.dumps(value, allow_nan=False)) <= _VARIABLE_CHARS
    except (TypeError, ValueError, RecursionError):
        return False
