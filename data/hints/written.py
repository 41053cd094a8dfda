r"""Numbers that a text states otherwise than in digits: words up to a hundred, and expressions by their exact value.

    list(words_in("twenty-four of them"))              # [Fraction(24)]
    list(expressions_in(r"2 \times (3 + 4) and 7"))    # [("3+4", Fraction(7)), ("2*(3+4)", Fraction(14))]

Left out: words of more than a hundred, fractions in words, roots and functions.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from gradus.data.answers import plain

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_ONES)} | {word: 10 * at for at, word in enumerate(_TENS, 2)}
_WORD = re.compile(
    rf"\b(?:({'|'.join(_TENS)})[\s-]({'|'.join(_ONES[1:10])})|((?:a |one )?hundred)|({'|'.join(_WORDS)}))\b",
    re.IGNORECASE,
)
_VULGAR = re.compile("(?<=[0-9])(?=[¼-¾⅐-⅞])")
_RAISED = re.compile("(?<=[0-9)])(?=[⁰¹²³⁴-⁹])")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_MIXED = re.compile(r"(?<![\d./])(\d+)(?:\s+(?=\d+/\d)|\s*(?=\\[dt]?frac))")
_SIGNS = (
    (re.compile(r"\\(?:left|right)(?![a-z])|\\[,!;:]|\{,\}(?=\d{3})|(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\(?:times|cdot)(?![a-z])|[×·∙⋅∗]|(?<=[\d)%])\s*[xX]\s*(?=[\d(.])|(?<=%)\s+of\s+(?=[\d(])"), "*"),
    (re.compile(r"\\div(?![a-z])|[÷⁄∕]"), "/"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\^\{(\d+)\}|\*\*(\d+)"), r"^\1\2"),
    (re.compile(r"(^|[^\d)%\s])(\s*)-(?=\s)"), r"\1\2\n"),  # a dash
)
_TOKEN = re.compile(r"(\d+(?:\.\d+)?|\.\d+)|([-+*/^()%])|[ \t]+|([^-+*/^()%.\d \t]+|\.)")
_BREAK, _SIGN = "", "-+*/^()%"
_MAX_DIGITS, _MAX_DEPTH, _MAX_POWER = 40, 8, 64


def words_in(text: str) -> Iterator[Fraction]:
    """Return every number up to a hundred that stands in English words."""
    for match in _WORD.finditer(text):
        tens, ones, hundred, word = match.groups()
        value = 100 if hundred else _WORDS[word.lower()] if word else _WORDS[tens.lower()] + _WORDS[ones.lower()]
        yield Fraction(value)


def expressions_in(text: str) -> Iterator[tuple[str, Fraction]]:
    """Return each expression of two numbers or more, without its spaces, and its value; parts in parentheses too.

    Sums, differences, products, quotients, powers, percent and mixed numbers, in plain or LaTeX signs.
    """
    tokens = _tokens(text)
    at = 0
    while at < len(tokens):
        if not tokens[at] or (tokens[at][0] not in _SIGN and tokens[at + 1 : at + 2] == [_BREAK]):  # not worth a reader
            at += 1
            continue
        reader = _Reader(tokens)
        value, end = reader.sum(at, 0)
        yield from reader.inner
        if value is not None and end - at > 1:
            yield "".join(tokens[at:end]), value
        at = end if value is not None else at + 1


def _tokens(text: str) -> list[str]:
    """Return numbers and signs; anything else, and a line's end, separates expressions."""
    body = plain(_RAISED.sub("^", _VULGAR.sub(" ", text)))
    for sign, written in _SIGNS:
        body = sign.sub(written, body)
    body = _MIXED.sub(r"\1+", body)
    for _ in range(3):  # fractions within fractions
        body = _FRACTION.sub(lambda m: f"(({m[1] or m[2]})/({m[3] or m[4]}))", body)
    return [match[1] or match[2] or _BREAK for match in _TOKEN.finditer(body) if any(match.groups())]


class _Reader:
    """One expression, read from the left as far as possible; values are None for no number."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self.inner: list[tuple[str, Fraction]] = []
        """Parts in parentheses."""

    def sum(self, at: int, depth: int) -> tuple[Fraction | None, int]:
        """Return the value of the sum that begins at a token, and the token behind it."""
        value, at = self._product(at, depth)
        while value is not None and self._at(at) in ("+", "-"):
            other, end = self._product(at + 1, depth)
            if other is None or _digits(value) > _MAX_DIGITS * _MAX_POWER:
                break
            value, at = value + (other if self._at(at) == "+" else -other), end
        return value, at

    def _product(self, at: int, depth: int) -> tuple[Fraction | None, int]:
        value, at = self._power(at, depth)
        while value is not None and self._at(at) in ("*", "/"):
            other, end = self._power(at + 1, depth)
            if other is None or (self._at(at) == "/" and other == 0) or _digits(value) > _MAX_DIGITS * _MAX_POWER:
                break
            value, at = (value * other if self._at(at) == "*" else value / other), end
        return value, at

    def _power(self, at: int, depth: int) -> tuple[Fraction | None, int]:
        if self._at(at) == "-":
            value, end = self._power(at + 1, depth + 1) if depth < _MAX_DEPTH else (None, at)
            return (None, at) if value is None else (-value, end)
        value, at = self._number(at, depth)
        if value is not None and self._at(at) == "%":
            value, at = value / 100, at + 1
        exponent = self._at(at + 1)
        if value is not None and self._at(at) == "^" and exponent.isdigit() and int(exponent) <= _MAX_POWER:
            value, at = (value ** int(exponent), at + 2) if _digits(value) <= _MAX_DIGITS else (None, at)
        return (value, at) if value is not None and _digits(value) <= _MAX_DIGITS * _MAX_POWER else (None, at)

    def _number(self, at: int, depth: int) -> tuple[Fraction | None, int]:
        found = self._at(at)
        if found == "(" and depth < _MAX_DEPTH:
            value, end = self.sum(at + 1, depth + 1)
            if value is None or self._at(end) != ")":
                return None, at
            if end - at > 2:
                self.inner.append(("".join(self._tokens[at + 1 : end]), value))
            return value, end + 1
        return (Fraction(found), at + 1) if found and found not in _SIGN and len(found) <= _MAX_DIGITS else (None, at)

    def _at(self, at: int) -> str:
        return self._tokens[at] if at < len(self._tokens) else _BREAK


def _digits(value: Fraction) -> int:
    return (abs(value.numerator).bit_length() + value.denominator.bit_length()) // 3
