"""Numbers and texts as a page shows them; what a policy wrote is text, with control characters made visible."""

import math

from markupsafe import Markup, escape

from gradus.tasks.formats import MAX_CELL_CHARS, visible
from gradus.tasks.inspect.groups import Rollout

MAX_BRIEF = 90
UNSURE = ((0.9, ""), (0.5, "u1"), (0.2, "u2"), (0.05, "u3"), (0.0, "u4"))
"""Least probability of a token and the class that it is coloured by."""


def number(value: float | None) -> str:
    """Return a number as people read it.

    >>> number(0.123456), number(1234.5), number(-0.0), number(None), number(12), number(0.00001)
    ('0.123', '1,234', '0', '-', '12', '1e-05')
    """
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def count(value: int) -> str:
    """Return a count with its thousands set apart."""
    return f"{value:,}"


def duration(seconds: float) -> str:
    """Return a time in two units at most.

    >>> duration(3.24), duration(75), duration(7322)
    ('3.2 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def brief(text: str) -> str:
    """Return the beginning of a text as one line.

    >>> brief("2 + 2  ="), len(brief("long " * 100))
    ('2 + 2 =', 90)
    """
    line = " ".join(visible(text[:400]).split())
    return line if len(line) <= MAX_BRIEF else f"{line[: MAX_BRIEF - 1]}…"


def band(value: float, low: float, high: float) -> str:
    """Return a value with the ends of its band, if it has one."""
    return number(value) if math.isnan(low) else f"{number(value)} [{number(low)}, {number(high)}]"


def coloured(rollout: Rollout) -> Markup:
    """Return a completion as HTML, its tokens coloured by their probability if that is known."""
    if rollout.pieces is None:
        return escape(visible(rollout.completion))
    found: list[str] = []
    left = MAX_CELL_CHARS
    for piece in rollout.pieces:
        text = escape(visible(piece.text[:left], MAX_CELL_CHARS))
        kind = next(name for least, name in UNSURE if math.exp(min(piece.logprob, 0.0)) >= least)
        found.append(f'<span class="{kind}" title="{piece.logprob:.2f}">{text}</span>' if kind and text else text)
        left -= len(piece.text)
        if left <= 0:
            break
    more = len(rollout.completion) - MAX_CELL_CHARS
    return Markup("".join([*found, f"… ({more:,} more characters)" if more > 0 else ""]))  # noqa: S704 - escaped above
