"""Marks of rewards, over the characters of a completion, as the table `scores` has them, over its tokens."""

from collections.abc import Sequence

from gradus.components.marks import Mark
from gradus.components.rows import tokens_of
from gradus.data.arrays import Ints
from gradus.data.records import JsonObject
from gradus.data.unicode import whole


def placed(marks: Sequence[Mark], bounds: tuple[Ints, Ints] | None) -> list[JsonObject]:
    """Return marks over tokens: a token belongs to a mark if it holds at least one of its characters.

    `bounds` are those of gradus.models.token_bounds; None for a completion of text alone, whose marks have no place.
    """
    found: list[JsonObject] = []
    for mark in marks:
        start, end = (None, None) if bounds is None else tokens_of(*bounds, mark.start, mark.end)
        label = None if mark.label is None else whole(mark.label)
        found.append({"name": whole(mark.name), "start": start, "end": end, "value": mark.value, "label": label})
    return found
