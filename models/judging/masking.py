"""The values of the variables that a reward may see, masked in what it answers and prints.

    mask = Mask(("JUDGE_API_KEY",))
    mask.text("401: wrong key sk-123")      # "401: wrong key ***"

Covered: a value as it is and as a URL has it. Not covered: shorter ones than four characters, and a reward that
disguises a value.
"""

import os
from collections.abc import Sequence
from urllib.parse import quote

_HIDDEN = "***"
_MIN_CHARS = 4


class Mask:
    """The values of some environment variables, as they are now."""

    def __init__(self, variables: Sequence[str]) -> None:
        values = [os.environ.get(name, "") for name in variables]
        forms = {form for value in values if len(value) >= _MIN_CHARS for form in (value, quote(value, safe=""))}
        self._values = sorted(forms, key=len, reverse=True)
        self._bytes = [value.encode(errors="surrogateescape") for value in self._values]
        self._held = b""

    def text(self, text: str) -> str:
        """Return the text without the values."""
        for value in self._values:
            text = text.replace(value, _HIDDEN)
        return text

    def piece(self, piece: bytes) -> bytes:
        """Return the next piece of a stream without the values; an end that may be the beginning of one is held."""
        found = self._held + piece
        for value in self._bytes:
            found = found.replace(value, _HIDDEN.encode())
        held = max((_overlap(found, value) for value in self._bytes), default=0)
        self._held = found[len(found) - held :]
        return found[: len(found) - held]

    def rest(self) -> bytes:
        """Return what is held when the stream has ended."""
        return self._held


def _overlap(found: bytes, value: bytes) -> int:
    """Return the number of bytes at the end that are the beginning of a value."""
    longest = min(len(found), len(value) - 1)
    return next((size for size in range(longest, 0, -1) if found.endswith(value[:size])), 0)
