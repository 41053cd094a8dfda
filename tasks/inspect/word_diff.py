"""The words of two texts that are in one of them alone."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

MAX_WORDS = 1500
"""Words of each text that are compared; the rest is shown without marks."""

Part = tuple[str, bool]
"""A part of a text, and whether the other text lacks it."""


def word_diff(left: str, right: str) -> tuple[list[Part], list[Part]]:
    """Return both texts in parts, marked where they differ; very frequent words of long texts count as different.

    >>> word_diff("2 + 2 = 5", "2 + 2 = 4")
    ([('2 + 2 = ', False), ('5', True)], [('2 + 2 = ', False), ('4', True)])
    """
    if left == right:
        return [(left, False)] if left else [], [(right, False)] if right else []
    words = [re.findall(r"\s+|[^\s]+", text) for text in (left, right)]
    compared = [each[:MAX_WORDS] for each in words]
    sides: tuple[list[Part], list[Part]] = ([], [])
    for kind, a, b, c, d in SequenceMatcher(None, compared[0], compared[1]).get_opcodes():
        _add(sides[0], compared[0][a:b], differs=kind != "equal")
        _add(sides[1], compared[1][c:d], differs=kind != "equal")
    for side, each in zip(sides, words, strict=True):
        _add(side, each[MAX_WORDS:], differs=False)
    return sides


def _add(side: list[Part], words: Sequence[str], *, differs: bool) -> None:
    if words:
        side.append(("".join(words), differs))
