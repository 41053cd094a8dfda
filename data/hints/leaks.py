"""Detection of texts that reveal the answer: exact values for numbers, the words themselves for anything else.

A number is found in digits (1,200; 1200.0; 2400/2), in words up to a hundred, and as the value of an expression
(30 * 40). One that the question already states is no leak: showing it again reveals nothing.
"""

import re
from fractions import Fraction
from functools import lru_cache

from gradus.data.answers import normalised_gold, number, numbers_in
from gradus.data.hints.written import expressions_in, words_in

_SPACE = re.compile(r"\s{2,}")
_UNIT = re.compile(r"\\?%|\^\{?\\circ\}?|°|\\(?:text|mbox|mathrm)\{[^{}]*\}")
_OVER = re.compile(r"\\[dt]?frac(?=\s*\{)")
_RATIO = re.compile(r"\\[dt]?frac|/")


def leaks(text: str, answer: str, question: str) -> bool:
    """Return whether `text` states `answer` although `question` does not.

    >>> leaks("so there are 1,200 of them", "1200", "How many?")
    True
    >>> leaks("12 boys and 1200 girls", "12", "There are 12 boys. How many?")
    False
    >>> leaks("so multiply 30 by 40: 30 * 40", "1200", "How many?")
    True
    """
    value = number(answer)
    value = number(_UNIT.sub("", answer)) if value is None else value
    if value is None:
        gold = _folded(answer)
        return bool(gold) and gold in _folded(text) and not _says(question, answer)
    if value in _literals(text):
        return not _states(question, value)
    written = {expression for expression, found in _expressions(text) if found == value}
    asked = {expression for expression, _ in _expressions(question)}
    return bool(written - asked) and not _states(question, value)


def _short(text: str) -> str:
    """Return a text whose runs of white space are one character each: to search long ones takes their square."""
    return _SPACE.sub(lambda run: "\n" if "\n" in run[0] else " ", text)


@lru_cache(maxsize=256)
def _literals(text: str) -> frozenset[Fraction]:
    text = _short(text)
    parts = _OVER.sub(" ; ", text)  # a numerator in LaTeX is stated too, as that of 3/4 is
    return frozenset({found for each in {text, parts} for _, found in numbers_in(each)} | {*words_in(text)})


@lru_cache(maxsize=256)
def _expressions(text: str) -> tuple[tuple[str, Fraction], ...]:
    return tuple(expressions_in(text))


def _states(question: str, value: Fraction) -> bool:
    """Return whether a question states a value itself: 2400/2 does not state 1200."""
    return value in _literals(_RATIO.sub(" ; ", question) if value.denominator == 1 else question)


def _says(question: str, answer: str) -> bool:
    """Return whether a question has the words of an answer, not as a part of others."""
    words = r"\s+".join(map(re.escape, normalised_gold(answer).casefold().split()))
    return bool(re.search(rf"(?<!\w){words}(?!\w)", normalised_gold(question).casefold()))


def _folded(text: str) -> str:
    return "".join(normalised_gold(text).casefold().split())
