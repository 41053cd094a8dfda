"""Formats of numbers, names and texts for people: on a terminal, in Markdown, on a page and in a picture.

Whatever a policy or a user wrote is hostile: it may hold markup, terminal commands, text that runs from right to left
over its neighbours, or a line of a megabyte. In files nothing is dropped without a visible mark; on a terminal what is
not text is left out.
"""

import html
import math
import re
from collections.abc import Callable, Collection

from gradus.data.records import Figure
from gradus.data.unicode import whole

MAX_CELL_CHARS = 4000
SHORT = 10
"""Digits of an artifact's name where there is no room for all of them; commands take the beginning of a name."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BIDI = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def number(value: float | None) -> str:
    """Return a number in three digits, whole ones in all of theirs.

    >>> number(0.123456), number(1234.5), number(-0.0), number(None), number(12), number(0.00001), number(999.7)
    ('0.123', '1,234', '0', '-', '12', '1e-05', '1,000')
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{abs(value) if value == 0 else value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def count(value: float | None) -> str:
    """Return a count, or a number whose decimals say nothing, with its thousands set apart; `-` if it is unknown.

    >>> count(12000), count(1234.5), count(None)
    ('12,000', '1,234', '-')
    """
    return "-" if value is None else f"{value:,.0f}"


def span(values: Collection[float]) -> str:
    """Return the least and the greatest of counts, or the one that all of them are.

    >>> span([5, 3, 4]), span([1200])
    ('3 to 5', '1,200')
    """
    return " to ".join(dict.fromkeys((count(min(values)), count(max(values)))))


def rate(value: float | None) -> str:
    """Return a rate in three decimals."""
    return "-" if value is None else f"{value:.3f}"


def share(value: float | None, decimals: int = 1) -> str:
    """Return a share in percent.

    >>> share(0.125), share(0.5, 0), share(None)
    ('12.5 %', '50 %', '-')
    """
    return "-" if value is None else f"{100 * value:.{decimals}f} %"


def points(value: float | None, *, sign: bool = True) -> str:
    """Return a difference of rates in points, with its sign or without.

    >>> points(0.0125), points(0.5, sign=False), points(None)
    ('+1.2', '50.0', '-')
    """
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.1f}"


def interval(figure: Figure, look: Callable[[float], str] = rate) -> str:
    """Return a figure with the ends of its interval, if it has one.

    >>> interval({"value": 0.25, "low": 0.125, "high": 0.5}), interval({"value": 1, "low": math.nan, "high": 1}, number)
    ('0.250 [0.125, 0.500]', '1')
    """
    value, low, high = (look(figure[name]) for name in ("value", "low", "high"))
    return value if math.isnan(figure["low"]) else f"{value} [{low}, {high}]"


def size(num_bytes: int) -> str:
    """Return bytes in three digits.

    >>> size(0), size(999), size(3_400_000), size(206_000_000)
    ('-', '999 B', '3.4 MB', '206 MB')
    """
    if not num_bytes:
        return "-"
    amount, units = float(num_bytes), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    while amount >= 999.5 and unit != "GB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"


def duration(seconds: float, decimals: int = 1) -> str:
    """Return a time in two units at most.

    >>> duration(3.24), duration(3.24, 0), duration(75), duration(7322)
    ('3.2 s', '3 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.{decimals}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def short(ref: str) -> str:
    """Return an artifact's name with the first digits of its digest."""
    return ref[: ref.index("/") + 1 + SHORT] if "/" in ref else ref


def terminal_safe(text: str) -> str:
    """The text without terminal commands, control characters and direction marks; new lines and tabs stay."""
    plain = _CONTROL.sub("", _ANSI.sub("", text))
    return whole(_BIDI.sub("", plain))


def visible(text: str, max_chars: int = MAX_CELL_CHARS) -> str:
    """The text with every control character and direction mark made visible, cut with a note of what was cut."""
    shown = _CONTROL.sub(_picture, text[:max_chars])
    shown = whole(_BIDI.sub(lambda m: f"⟦U+{ord(m.group()):04X}⟧", shown))
    return shown + more(text, max_chars)


def more(text: str, max_chars: int) -> str:
    """Return the note of what is cut off a text of more than `max_chars` characters; empty for another."""
    return f"… ({len(text) - max_chars:,} more characters)" if len(text) > max_chars else ""


def brief(text: str, max_chars: int = 90) -> str:
    """Return the beginning of a text as one line.

    >>> brief("2 + 2  ="), len(brief("long " * 100))
    ('2 + 2 =', 90)
    """
    line = " ".join(visible(text[: 4 * max_chars + 40]).split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def markdown(text: str) -> str:
    """One line of Markdown that shows the text as it is."""
    one_line = html.escape(visible(text, 500).replace("\n", " ⏎ "), quote=False)
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", one_line)


def csv_cell(text: str) -> str:
    """Return a text with a leading apostrophe if a spreadsheet would compute it.

    >>> csv_cell("=1+1"), csv_cell("-0.5"), csv_cell("a = b")
    ("'=1+1", '-0.5', 'a = b')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def label(text: str, max_chars: int = 60) -> str:
    """Return a text of a picture that matplotlib does not take for a formula."""
    return brief(text, max_chars).replace("$", r"\$")


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"⟦U+{code:04X}⟧"
