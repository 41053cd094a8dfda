"""Plain data as Python holds it: JSON values, rows of somebody's file, rows of the table problems. Types, no code."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | None"
"""Any JSON value, to be read."""

JsonObject: TypeAlias = Mapping[str, Json]

Row: TypeAlias = Mapping[str, object]
"""A row of somebody's file: nothing is known of its values."""


class Message(TypedDict):
    """One turn of a problem that is a chat."""

    role: str
    content: str


class Problem(TypedDict):
    """A row of the table problems."""

    problem_id: str
    question: str | None
    messages: list[Message] | None
    answer: str | None
    solution: str | None
    domain: str | None
    source: str | None
    extra: str | None
