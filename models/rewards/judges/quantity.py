r"""The reward `quantity`: a number with its unit, compared with the gold after conversion by Pint.

    judge({"completion": r"so \boxed{90\ \text{km/h}}"}, "25 m/s", 0).outcome    # correct

The answer is what follows the last `####`, else the last box: one number and a unit, nothing beside them. Without
either it is the last number of the text with the unit right behind it. Units are Pint's, by name, symbol and prefix
(`km/h`, `miles per hour`, `m s^{-1}`, `\mu m`, `kWh`, `%`), and case counts: `mW` is not `MW`. Numbers and factors are
fractions: an inch is 2.54 cm exactly.
Left out: currencies; differences of temperature (`°C` is a point of its scale); sums of units (`5 ft 3 in`).
"""

import re
from fractions import Fraction
from functools import cache
from typing import Annotated, Any

from annotated_types import Ge, Le

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.text import last_match, marked_answer, strip_invisible, visible_text

_MAX_UNIT_CHARS = 60
_LATEX = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\\(?:text|mathrm) ?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dt]?frac ?\{([^{}]*)\} ?\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\(?:text|mathrm|textrm|mathit|mbox|left|right)(?![a-z])|\\[,;:!() ]|[~$]"), " "),
    (re.compile(r"[{}]"), ""),
    (re.compile(r"\^ ?\\circ|\\degree"), "°"),
    (re.compile(r"\\mu(?![a-z]) ?"), "µ"),
    (re.compile(r"\\(?:Omega|ohm)(?![a-z])"), "ohm"),
    (re.compile(r"\\(?:times|cdot)(?![a-z])|[×·⋅]"), "*"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"(?<=\w)\*\*(?=-?\d)"), "^"),
    (re.compile(r"\*\*"), ""),
    (re.compile(r" ?\^ ?"), "^"),
    (re.compile(r"[\u2212\u2010-\u2013]"), "-"),
    (re.compile(r" +"), " "),
    (re.compile(r"° (?=[CF]\b)"), "°"),
)
_NUMBER = r"(?<![\w.])([-+]?(?:(?>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,2}(?!\w)| ?/ ?\d+)?)"
_TEN = r"(?: ?[*x] ?10 ?\^ ?([-+]?\d{1,2}))?"
_WORD = r"\(?[^\W\d_]+(?:\^-?\d(?!\d)|⁻?[¹²³⁴])?\)?|%|°[CF]?"
"""One unit, to a power of one digit, so that no power of a power is ever calculated."""
_ANSWER = re.compile(rf"{_NUMBER}{_TEN} ?((?:/ ?)?(?:{_WORD})(?:(?: ?[*/] ?| )(?:{_WORD}))*)?")
_IN_TEXT = re.compile(rf"{_NUMBER}{_TEN}(?: ?(?:{_WORD})(?:(?: ?/ ?| per )(?:{_WORD}))*)?")


@component("reward", name="quantity", libraries=("pint",), needs_gold=True)
def judge(
    row: Row,
    gold: str,
    max_chars: int,
    *,
    tolerance: Annotated[float, Ge(0.0), Le(1.0)] = 1e-6,
    bare: bool = False,
) -> Verdict:
    """1 if the quantity of the completion equals the gold quantity in any unit of its dimension, else 0.

    Args:
        row: The completion.
        gold: The number with its unit.
        max_chars: Longer completions are judged by their last characters.
        tolerance: Largest relative error of an equal number, in the unit of the gold; 0 compares exactly.
        bare: Read a number without a unit in the unit of the gold; else it has none, and differs.
    """
    wanted = read_quantity(gold)
    if wanted is None:
        return failed(f"the gold answer {gold[:80]!r} is not one number with a unit that Pint knows")
    text = visible_text(row["completion"], max_chars)
    if text is None:
        return unparsed()
    stated = marked_answer(strip_invisible(text))
    if stated is None:
        last = last_match(_IN_TEXT, _plain(strip_invisible(text)))
        stated = "" if last is None else last.group()
    found = read_quantity(stated, wanted.units if bare else None)
    if found is None:
        return unparsed(stated)
    if not found.is_compatible_with(wanted.units):
        return judged(correct=False, extracted=stated)
    size, right = found.to(wanted.units).magnitude, wanted.magnitude
    return judged(correct=abs(size - right) <= Fraction(tolerance) * abs(right), extracted=stated)


def warm_up() -> None:
    """Read the definitions of Pint, which takes longer than judging a hundred rows."""
    read_quantity("1 km/h")


def read_quantity(text: str, bare: Any = None) -> Any:
    r"""Return the one number of a short text with its unit, as Pint's Quantity of a Fraction; None for anything else.

    A number without a unit has the unit `bare`, by default none.

    >>> read_quantity(r"3.0 \times 10^{8}\ \mathrm{m\,s^{-1}}").to("km/s").magnitude
    Fraction(300000, 1)
    """
    match = _ANSWER.fullmatch(_plain(text).strip(" ."))
    if match is None or len(match[3] or "") > _MAX_UNIT_CHARS:
        return None
    try:
        size = Fraction(re.sub(r"[,\s]", "", match[1])) * Fraction(10) ** int(match[2] or 0)
        unit = match[3] or ""
        known = _registry().parse_units(f"1{unit}" if unit.startswith("/") else unit)
        return _registry().Quantity(size, bare if bare is not None and not unit else known)
    except Exception:  # noqa: BLE001 - whatever Pint's parser raises about a stranger's text
        return None


@cache
def _registry() -> Any:
    import pint  # noqa: PLC0415 - its units take 0.6 s to read

    exact: Any = Fraction  # Pint declares floats and takes any number
    return pint.UnitRegistry(non_int_type=exact)


def _plain(text: str) -> str:
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return text
