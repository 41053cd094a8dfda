r"""The reward `math`: is the answer mathematically the gold answer? Math-Verify 0.9.0 decides.

    judge({"completion": r"... \boxed{\frac{2}{4}}"}, "0.5", {}).outcome    # correct

The answer is the last `\boxed{}` after the thinking, else what follows the last `####`, else what Math-Verify finds in
the text. Golds are wrapped in a box, so that they parse without any dollar signs. A trailing period is dropped.
Percent and units are read as Math-Verify reads them: `34%` equals 34 and equals 0.34 (but 34 never equals 0.34);
`5 cm` equals 5; `x=5` equals 5; a list or set equals the gold set whatever its order; `34 or 35` is not 34.
Where this differs from Math-Verify: several boxes at the end are a list; exact numbers that round to one value are
equal only if their ratio is 1 to six digits (`1/2004!` is not `5/2004!`); a base or the power of a unit that both state
must be the same (`12_7` is not `12_9`); `\frac \pi4` is read.
A short cut skips SymPy where the answer is plain: equal strings are equal; whole numbers and fractions of whole
numbers are compared exactly. Wherever Math-Verify rounds (decimals that differ) it decides itself.
Math-Verify's own timeouts are switched off: they are alarms that its own code can swallow; the pool's wall limit holds.
Source: https://github.com/huggingface/Math-Verify (Apache-2.0), the library, not its code.
"""

import re
from fractions import Fraction
from functools import lru_cache

from math_verify import parse, verify
from sympy import Basic, Expr, Float, MatrixBase

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.text import last_box, last_boxes, last_marked, strip_invisible, visible_text

MAX_PLAIN_CHARS = 300

Parsed = list[Basic | MatrixBase | str]
"""Result of Math-Verify's parsing of a text: the expressions, then the text itself."""

_SPACES = ("\\,", "\\;", "\\:", "\\!", "~")
"""LaTeX's white space."""
_BARE_FRACTION = re.compile(r"\\([dt]?frac)\s*(\\[A-Za-z]+)\s*([0-9A-Za-z])")
"""A fraction of a command without braces, which Math-Verify does not read."""
_BASE = re.compile(r"([0-9A-Za-z.]+)_\{?([0-9]+)\}?")
_POWER_OF_UNIT = re.compile(r".*?\\(?:text|mbox|mathrm)\{\s*([A-Za-z.]+)\s*\}\s*\^\s*\{?([0-9]+)\}?")
_RATIO_DIGITS, _SAME_RATIO = 15, 1e-6
_DIGITS = r"[0-9]+"
_PLAIN_INT = re.compile(r"-?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)")
_PLAIN_FRACTION = re.compile(
    rf"(?P<sign>-?)(?:(?P<a>{_DIGITS})/(?P<b>{_DIGITS})|\\[dt]?frac\{{(?P<c>{_DIGITS})\}}\{{(?P<d>{_DIGITS})\}})"
)


@component("reward", name="math", libraries=("math-verify",), needs_gold=True)
def judge(row: Row, gold: str, max_chars: int) -> Verdict:
    """1 if the completion's answer equals the gold mathematically (Math-Verify), 0 if it does not or there is none."""
    wanted = gold_expression(gold)
    if not wanted:
        return failed("the gold answer is empty")
    text = visible_text(row["completion"], max_chars)
    if text is None:
        return unparsed()
    text = strip_invisible(text)
    answer = stated_expression(text)
    if answer is None:
        return _judge_free_text(text, wanted)
    if not answer:
        return unparsed()
    verdict = _verdict(wanted, answer)
    boxes = [] if verdict.outcome == "correct" else last_boxes(text)
    return verdict if len(boxes) < 2 else _verdict(wanted, ", ".join(map(_trim, boxes)))


def _verdict(wanted: str, answer: str) -> Verdict:
    plain = compare_plain(wanted, answer)
    if plain is not None:
        return judged(correct=plain, extracted=answer)
    if _disagree(wanted, answer):
        return judged(correct=False, extracted=answer)
    return _compare(wanted, _parse_boxed(answer), answer)


def _disagree(gold: str, answer: str) -> bool:
    """Return whether both state a base, or a power of one unit, and not the same."""
    base, other_base = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if base and other_base:
        return base[2] != other_base[2]
    unit, other_unit = _POWER_OF_UNIT.fullmatch(gold), _POWER_OF_UNIT.fullmatch(answer)
    return bool(unit and other_unit and unit[1] == other_unit[1] and unit[2] != other_unit[2])


def gold_expression(gold: str) -> str:
    """The bare LaTeX of a gold answer: out of its box, marker or dollar signs."""
    gold = strip_invisible(gold)
    boxes = last_boxes(gold)
    stated = ", ".join(map(_trim, boxes)) if len(boxes) > 1 else stated_expression(gold)
    return _trim(gold if stated is None else stated)


def stated_expression(text: str) -> str | None:
    """The content of the last box, else what follows the last marker; empty where that is empty, None without both."""
    box = last_box(text)
    stated = box if box is not None else last_marked(text)
    return None if stated is None else _trim(stated)


def compare_plain(gold: str, answer: str) -> bool | None:
    """Return whether two plain answers are equal; None if only Math-Verify can tell.

    >>> compare_plain("1,000", "1000"), compare_plain("1/2", "0.5")
    (True, None)
    """
    if gold == answer:
        return True
    left, right = _plain_value(gold), _plain_value(answer)
    return None if left is None or right is None else left == right


def warm_up() -> None:
    """Compile the library's patterns and grammar, which takes longer than judging a hundred rows."""
    verify(_parse_boxed(r"\frac{1}{2}"), _parse_boxed("0.5"), timeout_seconds=None)
    _parse("the answer is $2x$ or 3")


def _judge_free_text(text: str, wanted: str) -> Verdict:
    found = _parse(text)
    if not found:
        return unparsed()
    # Math-Verify puts the matched text last; the parsed expression itself may be too large to print.
    return _compare(wanted, found, found[-1] if isinstance(found[-1], str) else "")


def _compare(wanted: str, found: Parsed, extracted: str) -> Verdict:
    gold = _parse_gold(wanted)
    if not gold:
        return failed(f"Math-Verify cannot read the gold answer {wanted[:80]!r}")
    if not found:
        return unparsed(extracted)
    equal = bool(verify(gold, found, timeout_seconds=None)) and not _only_rounded(gold[0], found[0])
    return judged(correct=equal, extracted=extracted)


def _only_rounded(gold: Basic | MatrixBase | str, found: Basic | MatrixBase | str) -> bool:
    """Return whether two exact numbers differ although both round to one value."""
    if not (isinstance(gold, Expr) and isinstance(found, Expr) and gold.is_number and found.is_number):
        return False
    if gold == found or gold.has(Float) or found.has(Float):
        return False
    ratio = (gold / found).evalf(_RATIO_DIGITS)
    return bool(ratio.is_Float) and abs(float(ratio) - 1) > _SAME_RATIO


@lru_cache(maxsize=256)
def _parse_gold(gold: str) -> Parsed:
    return _parse_boxed(gold)


def _parse_boxed(expression: str) -> Parsed:
    return _parse(f"\\boxed{{{_BARE_FRACTION.sub(_with_braces, expression)}}}")


def _with_braces(fraction: re.Match[str]) -> str:
    return f"\\{fraction[1]}{{{fraction[2]}}}{{{fraction[3]}}}"


def _parse(text: str) -> Parsed:
    return parse(text, parsing_timeout=0)


def _trim(text: str) -> str:
    text = _stripped(text)
    while len(text) > 1 and text[0] == text[-1] == "$":
        text = _stripped(text[1:-1])
    return text.rstrip(".").strip() if not text.endswith("..") else text


def _stripped(text: str) -> str:
    """Return a text without white space at its ends, LaTeX's included."""
    start, end = 0, len(text)
    while start < end and (text[start].isspace() or text.startswith(_SPACES, start, end)):
        start += 1 if text[start].isspace() or text[start] == "~" else 2
    while end > start and (text[end - 1].isspace() or text.endswith(_SPACES, start, end)):
        end -= 1 if text[end - 1].isspace() or text[end - 1] == "~" else 2
    return text[start:end]


def _plain_value(text: str) -> Fraction | None:
    if len(text) > MAX_PLAIN_CHARS:
        return None
    if _PLAIN_INT.fullmatch(text):
        return Fraction(text.replace(",", ""))
    match = _PLAIN_FRACTION.fullmatch(text)
    if not match:
        return None
    part = match.groupdict()
    above, below = int(part["a"] or part["c"]), int(part["b"] or part["d"])
    if below == 0:
        return None
    return Fraction(-above if part["sign"] else above, below)
