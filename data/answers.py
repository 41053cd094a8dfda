r"""Reading golds and numbers exactly: thousands commas, signs, leading zeros, Unicode digits, simple LaTeX fractions.

normalised_gold("1,200")        # "1200"
number(r"\frac{2400}{2}")       # Fraction(1200)
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate

_SIGNS = str.maketrans(dict.fromkeys("−–—﹣－", "-") | dict.fromkeys("\u00a0\u2009\u202f", " "))
_RAISED = str.maketrans({digit: f"^{value}" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
"""Powers, of which NFKC makes digits: 22 of 2²."""
_LATEX_FRACTION = re.compile(r"(-?)\s*\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(-?\d+)\s*\}|(\d))")
_PLAIN_FRACTION = re.compile(r"(-?\d+)\s*/\s*(-?\d+)")
_GROUPED = r"\d{1,3}(?:(?:,|\{,\}|\\,|\\!,| )\d{3})+"
_DECIMAL = re.compile(rf"[-+]?(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)")
_SPAN = re.compile(
    rf"{_LATEX_FRACTION.pattern.replace('(-?)', '-?', 1)}|-?\d+\s*/\s*\d+|-?(?:{_GROUPED}|\d+)(?:\.\d+)?|-?\.\d+"
)
_NOT_DIGITS = re.compile(r",|\{,\}|\\,|\\!|\s")
_MAX_DIGITS = 400
_MAX_FORMS = 400
_WRAPPED = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf) ?\{(.*)\}")
_PERCENT = re.compile(rf"(-?(?:{_GROUPED}|\d+)(?:\.\d+)?) ?\\?%")
_LETTER = re.compile(r"\(([A-Ja-j])\)|([A-Ja-j])\)")
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-][^\W\d_]+)*+")
_SIZE = re.compile(r"\\(?:(?:left|right)(?![a-zA-Z])|[!,;:])")
_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def plain(text: str) -> str:
    """The text with Unicode digits and signs as ASCII ones, dollar signs and outer spaces dropped."""
    folded = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    return folded.replace("$", "").replace(r"\$", "").strip()


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number and nothing else; None otherwise."""
    body = plain(text.translate(_RAISED)).rstrip(".").strip()
    if not body or len(body) > _MAX_DIGITS:
        return None
    if (latex := _LATEX_FRACTION.fullmatch(body)) is not None:
        sign, wide_top, top, wide_bottom, bottom = latex.groups()
        return _ratio(wide_top or top, wide_bottom or bottom, negative=bool(sign))
    if (fraction := _PLAIN_FRACTION.fullmatch(body)) is not None:
        return _ratio(fraction[1], fraction[2])
    if _DECIMAL.fullmatch(body):
        return Fraction(_NOT_DIGITS.sub("", body))
    return None


def normalised_gold(text: str) -> str:
    """A gold as it is compared: a number in its shortest exact form, anything else with single spaces."""
    if (value := number(text)) is None:
        return " ".join(plain(text.translate(_RAISED)).split())
    return str(value.numerator) if value.denominator == 1 else _decimal(value)


def answer_key(text: str | None) -> str | None:
    r"""Return the form in which extracted answers are counted: one for answers that differ in their writing alone.

    Equal numbers have one form, and so have words in upper and lower case, `(b)` and `B.`, `50\%` and `50 %`, JSON with
    its keys in another order, formulas with other spaces, and anything with or without $ or a box around it. Formulas
    are compared as texts. The form is never judged.

    >>> answer_key("0.50") == answer_key(r"\boxed{\frac{1}{2}}"), answer_key("x  + 1"), answer_key(None)
    (True, 'x+1', None)
    """
    if text is None:
        return None
    form = " ".join(plain(text.translate(_RAISED)).split())
    for _ in range(_MAX_FORMS):
        before, form = form, _form(form)
        if form == before:
            break
    return form


def _form(text: str) -> str:
    """Return a text in a form that is nearer to the one of its answer, or is it."""
    body = " ".join(plain(text).split()).rstrip(" .")
    rules = (_unwrapped, _number_form, _json_form, _formula_form) if len(body) <= _MAX_DIGITS else ()
    return next((form for rule in rules if (form := rule(body)) is not None), body)


def _unwrapped(body: str) -> str | None:
    """Return the content of a box, of LaTeX text, and the letter of a choice; None for anything else."""
    if (letter := _LETTER.fullmatch(body)) is not None:
        return str(letter[1] or letter[2]).upper()
    wrapped = _WRAPPED.fullmatch(body)
    return wrapped[1].strip() if wrapped is not None and _is_balanced(wrapped[1]) else None


def _number_form(body: str) -> str | None:
    percent = _PERCENT.fullmatch(body)
    value = body if percent is None else percent[1]
    return None if number(value) is None else normalised_gold(value) + "%" * (percent is not None)


def _json_form(body: str) -> str | None:
    if not body.startswith(("{", "[")):
        return None
    try:
        held = json.loads(body, parse_float=normalised_gold, parse_int=normalised_gold, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return json.dumps(held, sort_keys=True, ensure_ascii=False)


def _formula_form(body: str) -> str | None:
    """Return words in lower case, and formulas without spaces and sizes that mean nothing."""
    if _WORDS.fullmatch(body):
        return body.casefold()
    if not any(sign in body for sign in "+-*/^=<>\\"):
        return None
    return _SPACE.sub("", _SIZE.sub("", body).replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac"))


def _is_balanced(text: str) -> bool:
    """Return whether each brace of a text is closed, and none closes one before it."""
    depths = [0, *accumulate((char == "{") - (char == "}") for char in text)]
    return min(depths) == depths[-1] == 0


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
        if (value := number(body)) is not None:
            yield match.end(), value
            if body.startswith("-"):
                yield match.end(), -value
        # "2400/2" and "18 000" state their parts too.
        parts = re.split(r"[/\s]+", body)
        for part in parts if len(parts) > 1 else ():
            if (inner := number(part)) is not None:
                yield match.end(), inner


def _ratio(top: str, bottom: str, *, negative: bool = False) -> Fraction | None:
    if int(bottom) == 0:
        return None
    value = Fraction(int(top), int(bottom))
    return -value if negative else value


def _decimal(value: Fraction) -> str:
    """A terminating decimal as such, any other fraction as a/b."""
    places = next((n for n in range(value.denominator.bit_length()) if pow(10, n, value.denominator) == 0), 0)
    if not places:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
