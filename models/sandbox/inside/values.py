"""Values of Python as JSON and back, by exact kind: what crosses between a program and its tests.

Numbers, texts, bytes, None, lists, tuples, dicts, sets. An object of another class is refused, so nothing that crosses
has code of its own.
"""

from collections.abc import Callable
from typing import Any

_MAX_DEPTH = 100


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
