"""Errors of a child process as plain data, so that its parent raises what the child raised.

parent.send(failed(error))              # in the child
raise known_error(message) or ...       # in the parent
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from gradus.data.errors import GradusError, error_class, in_words
from gradus.tasks.config.redaction import hide


class Failed(TypedDict):
    """An error; `known` is true for those of gradus.data.errors."""

    kind: Literal["error"]
    type: str
    known: bool
    message: str
    hint: str


def failed(error: Exception) -> Failed:
    """Return the message of an error, its secrets hidden."""
    plain = in_words(error)
    return {
        "kind": "error",
        "type": type(error).__name__,
        "known": isinstance(error, GradusError),
        "message": hide(plain.message),
        "hint": plain.hint,
    }


def known_error(message: Mapping[str, Any]) -> GradusError | None:
    """Return the error of a message as its own type; None if it is none of ours."""
    kind = error_class(message["type"]) if message["known"] else None
    return kind(message["message"], hint=message["hint"]) if kind is not None else None
