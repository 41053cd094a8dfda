"""Changes of a recipe as they are typed: `a.b=c` texts, or values by dotted key.

assign(body, ["update.lr=1e-4", "escalate=[1, 2]"])
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from gradus.data.errors import UsageError

Assignments: TypeAlias = Mapping[str, object] | Sequence[str]
"""Values by dotted key, or `a.b=c` texts."""


def assign(body: dict[str, object], assignments: Assignments) -> None:
    """Apply assignments to a nested dict in place."""
    for key, value in pairs(assignments):
        set_dotted(body, key, value)


def pairs(assignments: Assignments) -> Iterable[tuple[str, object]]:
    """Return the dotted key and the value of each assignment; values in texts are read as TOML, else as text."""
    return assignments.items() if isinstance(assignments, Mapping) else map(split_assignment, assignments)


def split_assignment(text: str) -> tuple[str, object]:
    """Return key and value of `a.b=c`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UsageError(f"--set {text!r} is not an assignment", hint="write it as --set update.lr=1e-4")
    return key.strip(), toml_value(value.strip())


def set_dotted(body: dict[str, object], key: str, value: object) -> None:
    """Set a dotted key in a nested dict; an integer part indexes a list. Raise UsageError if there is no such key."""
    parts = key.split(".")
    node: Any = body
    for depth, part in enumerate(parts):
        place = _place(node, part, ".".join(parts[:depth]), key)
        if depth == len(parts) - 1:
            node[place] = value
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            node = node[place]


def _place(node: object, part: str, parent: str, key: str) -> str | int:
    """Return a part of a dotted key as a list index or a table key."""
    if isinstance(node, dict):
        return part
    if not isinstance(node, list):
        message = f"--set {key}: {parent} is one value, without settings of its own"
        raise UsageError(message, hint=f"set {parent} itself")
    num = len(node)
    if part not in map(str, range(num)):
        raise UsageError(f"--set {key}: {parent} is a list of {num}, and has no entry {part}", hint="the first is 0")
    return int(part)


def toml_value(text: str) -> object:
    """Return the text as a TOML value, or as text if it is not valid TOML (`lr=1e-4`, `name=abc`, `escalate=[1,2]`)."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text
