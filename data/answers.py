r"""Reading golds and numbers exactly: thousands commas, signs, leading zeros, Unicode digits, simple LaTeX fractions.

normalised_gold("1,200")        # "1200"
number(r"\frac{2400}{2}")       # Fraction(1200)
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

_MINUS = str.maketrans(dict.fromkeys("−–—﹣－", "-") | dict.fromkeys("\u00a0\u2009\u202f", " "))
_LATEX_FRACTION = re.compile(r"(-?)\s*\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(-?\d+)\s*\}|(\d))")
_PLAIN_FRACTION = re.compile(r"(-?\d+)\s*/\s*(-?\d+)")
_GROUPED = r"\d{1,3}(?:(?:,|\{,\}|\\,|\\!,| )\d{3})+"
_DECIMAL = re.compile(rf"[-+]?(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)")
_SPAN = re.compile(
    rf"{_LATEX_FRACTION.pattern.replace('(-?)', '-?', 1)}|-?\d+\s*/\s*\d+|-?(?:{_GROUPED}|\d+)(?:\.\d+)?|-?\.\d+"
)
_NOT_DIGITS = re.compile(r",|\{,\}|\\,|\\!|\s")
_MAX_DIGITS = 400


def plain(text: str) -> str:
    """The text with Unicode digits and signs as ASCII ones, dollar signs and outer spaces dropped."""
    folded = unicodedata.normalize("NFKC", text.translate(_MINUS)).translate(_MINUS)
    return folded.replace("$", "").replace(r"\$", "").strip()


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number and nothing else; None otherwise."""
    body = plain(text).rstrip(".").strip()
    if not body or len(body) > _MAX_DIGITS:
        return None
    latex = _LATEX_FRACTION.fullmatch(body)
    if latex is not None:
        sign, wide_top, top, wide_bottom, bottom = latex.groups()
        return _ratio(wide_top or top, wide_bottom or bottom, negative=bool(sign))
    fraction = _PLAIN_FRACTION.fullmatch(body)
    if fraction is not None:
        return _ratio(fraction[1], fraction[2])
    if _DECIMAL.fullmatch(body):
        return Fraction(_NOT_DIGITS.sub("", body))
    return None


def normalised_gold(text: str) -> str:
    """A gold as it is compared: a number in its shortest exact form, anything else with single spaces."""
    value = number(text)
    if value is None:
        return " ".join(plain(text).split())
    return str(value.numerator) if value.denominator == 1 else _decimal(value)


def answer_key(text: str | None) -> str | None:
    r"""Return the form in which extracted answers are counted: equal numbers have one, other texts but for spaces.

    >>> answer_key("0.50") == answer_key(r"\frac{1}{2}"), answer_key("x  + 1"), answer_key(None)
    (True, 'x + 1', None)
    """
    return None if text is None else normalised_gold(text)


def further_golds(extra: str | None) -> list[str]:
    """Return the answers that are as right as the gold of a problem: the list `golds` of its `extra`, JSON.

    >>> further_golds('{"golds": ["x = 3", 3]}')
    ['x = 3', '3']
    """
    if extra is None or '"golds"' not in extra:
        return []
    try:
        held = json.loads(extra)
    except (ValueError, RecursionError):
        return []
    golds = held.get("golds") if isinstance(held, dict) else None
    known = [gold for gold in golds if isinstance(gold, str | int | float)] if isinstance(golds, list) else []
    return [str(gold) for gold in known if not isinstance(gold, bool)]


def numbers_in(text: str) -> Iterator[tuple[int, Fraction]]:
    """Return every number in a text, with the offset of its end."""
    folded = plain(text)
    for match in _SPAN.finditer(folded):
        # The minus of "16-7" subtracts: both readings are returned.
        body = match[0]
        value = number(body)
        if value is not None:
            yield match.end(), value
            if body.startswith("-"):
                yield match.end(), -value
        # "2400/2" and "18 000" state their parts too.
        parts = re.split(r"[/\s]+", body)
        for part in parts if len(parts) > 1 else ():
            inner = number(part)
            if inner is not None:
                yield match.end(), inner


def _ratio(top: str, bottom: str, *, negative: bool = False) -> Fraction | None:
    if int(bottom) == 0:
        return None
    value = Fraction(int(top), int(bottom))
    return -value if negative else value


def _decimal(value: Fraction) -> str:
    """A terminating decimal as such, any other fraction as a/b."""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
