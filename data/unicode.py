r"""Text that UTF-8 has a form for: JSON and names of files may hold half of a character.

whole("a\ud800")      # "a\N{REPLACEMENT CHARACTER}"
"""

import re

_HALVES = re.compile(r"[\ud800-\udfff]")


def whole(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair."""
    return text if text.isascii() else _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


def num_halves(text: str) -> int:
    """Return how many halves of a surrogate pair a text has."""
    return 0 if text.isascii() else len(_HALVES.findall(text))
