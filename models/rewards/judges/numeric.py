r"""The reward `numeric`: the plain reading of one number, compared exactly, or within a tolerance.

    judge({"completion": "so 2 * 9 = 18\n#### 18"}, "18", {}).outcome   # correct

Where the number is read: behind the last `####`, else in the last `\boxed{}`, else the last number of the text.
How: thousands commas, signs, decimals, a/b, \frac{a}{b}, mixed numbers (1 1/2), exponents (1e3), Unicode minus signs
and digits, leading zeros. Currency, units and a percent sign are passed over: 34% reads as 34, never as 0.34.
Behind a marker or in a box there must be exactly one number and nothing to calculate: `34 or 35`, `2+3`, `2x`, `5!`
are unparsed, so that a hedge never scores.
Values are `fractions.Fraction`: no rounding, 0.333 is not 1/3.
Left out: decimal commas, spaces between thousands, number words, roots and constants (reward `math` has them).
"""

import re
from fractions import Fraction
from typing import Annotated

from annotated_types import Ge, Le

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.text import last_match, marked_answer, strip_invisible, visible_text

MAX_NUMBER_CHARS = 4000
"""Longer numbers are not read (Python itself refuses to convert more than 4300 digits)."""

_INT = r"(?>\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_DEC = rf"(?>{_INT}(?:\.\d+)?|\.\d+)"
_FRAC = rf"\\[dtc]?frac\s*\{{\s*(?P<fn>-?{_DEC})\s*\}}\s*\{{\s*(?P<fd>-?{_DEC})\s*\}}"
_NUMBER = re.compile(
    rf"(?<![\w^/.])(?P<sign>(?<![)}}\]])[-+])?(?:"
    rf"(?P<whole>\d+)?\s*{_FRAC}"
    rf"|(?:(?P<mixed>\d+)\s+)?(?P<n>{_DEC})\s*/\s*(?P<d>{_DEC})(?!\s*/\s*\d|\.\d)"
    rf"|(?P<dec>{_DEC})(?P<exp>[eE][-+]?\d{{1,3}}(?![\w.]))?(?!\.\d|\s*/\s*\d))"
)
_SHORT_FRAC = re.compile(r"\\([dtc]?)frac\s*(\d)\s*(\d)")

_SAME = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2044\u2215\uff0f", "/"),
        **dict.fromkeys("\uff0c\u066c", ","),
        **dict.fromkeys("\uff0e\u066b", "."),
        **dict.fromkeys("%\uff05\u066a\u00b0~", " "),
        **dict.fromkeys("\u20ac\u00a3\u00a5\u20b9", "$"),
        "\uff0b": "+",
    }
)
_LATEX = (
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:[,!]|left|right|displaystyle)"), ""),
    (re.compile(r"\\[;: ()\[\]]|\\quad|\^\s*\{?\s*\\circ\s*\}?"), " "),
    (re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\\$"), "$"),
)
_CURRENCY_MINUS = re.compile(r"-\s*\$\s*(?=[\d.])")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])(\s*)\^\s*\{?[23]\}?")
_CALCULATION = re.compile(r"[\\^*+<>±√π∞≤≥≈]|--|/(?!\s*[A-Za-z])|(?<![A-Za-z])[xyz](?![A-Za-z]|\s*=)")
_ATTACHED = re.compile(r"[!^²³⁴-⁹]|[a-ceiknp-rt-z](?![A-Za-z])")


@component("reward", name="numeric", needs_gold=True)
def judge(row: Row, gold: str, max_chars: int, *, tolerance: Annotated[float, Ge(0.0), Le(1.0)] = 0.0) -> Verdict:
    """1 if the number of the completion equals the gold number, 0 if it differs or there is none.

    Args:
        row: The completion.
        gold: The number.
        max_chars: Longer completions are judged by their last characters.
        tolerance: Largest relative error of an equal number; 0 compares exactly.
    """
    wanted = read_gold(gold)
    if wanted is None:
        return failed(f"the gold answer {gold[:80]!r} is not one plain number")
    text = visible_text(row["completion"], max_chars)
    if text is None:
        return unparsed()
    text = strip_invisible(text)
    anchored = marked_answer(text)
    found, value = (anchored, read_number(anchored)) if anchored is not None else read_last_number(text)
    if value is None:
        return unparsed(found)
    return judged(correct=abs(value - wanted) <= Fraction(tolerance) * abs(wanted), extracted=found or "")


def read_gold(gold: str) -> Fraction | None:
    """The number that a gold answer states, with or without a marker or box around it."""
    gold = strip_invisible(gold)
    anchored = marked_answer(gold)
    return read_number(gold if anchored is None else anchored)


def read_number(text: str) -> Fraction | None:
    r"""The one number of a short text, units and currency passed over; None for none, several or a calculation.

    >>> read_number("-$1,234.50 per day"), read_number(r"\frac{3}{6}"), read_number("34 or 35")
    (Fraction(-2469, 2), Fraction(1, 2), None)
    """
    plain = _UNIT_POWER.sub(r"\1", _plain(text)).strip(" *_`\t\r\n").rstrip(" .")
    plain = re.sub(r"^([-+])\s+(?=[\d.\\])", r"\1", plain)
    matches = list(_NUMBER.finditer(plain))
    if len(matches) != 1:
        return None
    (match,) = matches
    before, after = plain[: match.start()], plain[match.end() :]
    if _ATTACHED.match(after) or _CALCULATION.search(before + " " + after) or _has_digit(before + after):
        return None
    return _value(match)


def read_last_number(text: str) -> tuple[str | None, Fraction | None]:
    """The last number of a text, as written and as a value."""
    last = last_match(_NUMBER, _plain(text))
    return (None, None) if last is None else (last.group().strip(), _value(last))


def _plain(text: str) -> str:
    text = text.translate(_SAME)
    if "\\" in text or "{" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
        text = _SHORT_FRAC.sub(r"\\frac{\2}{\3}", text)
    if "$" in text:
        text = _CURRENCY_MINUS.sub("-", text).replace("$", " ")
    return text.replace("**", " ")


def _has_digit(text: str) -> bool:
    # A digit that is no number of its own (m2, 10:3x, 1/2/2020) makes the reading doubtful unless it follows a letter.
    return re.search(r"(?<![A-Za-z\d])\d", text) is not None


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match.group()) > MAX_NUMBER_CHARS:
        return None
    part = match.groupdict()
    numerator, denominator = part["fn"] or part["n"], part["fd"] or part["d"]
    if numerator is None:
        size = _fraction(part["dec"] + (part["exp"] or ""))
    else:
        below = _fraction(denominator or "")
        if below == 0:
            return None
        size = _fraction(part["whole"] or part["mixed"] or "0") + _fraction(numerator) / below
    return -size if part["sign"] == "-" else size


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))
