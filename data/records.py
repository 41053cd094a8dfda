"""Plain data as Python holds it: JSON values, figures of reports, rows of files and of problems. Types, no code."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypeAlias, TypedDict

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | None"
"""Any JSON value, to be read."""

JsonObject: TypeAlias = Mapping[str, Json]

Row: TypeAlias = Mapping[str, object]
"""A row of a file from elsewhere: its values have unknown types."""


class Figure(TypedDict):
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float


class Problem(TypedDict):
    """A row of the table problems."""

    problem_id: str
    question: str | None
    messages: list[dict[str, str]] | None
    """The turns of a chat, each with role and content."""
    answer: str | None
    solution: str | None
    domain: str | None
    source: str | None
    extra: str | None
    answer_given: NotRequired[str | None]
    """The gold as the source writes it, where that is not how it is compared."""
