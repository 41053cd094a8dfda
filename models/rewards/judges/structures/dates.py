"""The reward `month_distance`: nearness of a month to that of the gold."""

import math
import re
from typing import Annotated

from annotated_types import Ge

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, unparsed
from gradus.models.rewards.judges.exact import stated_answer
from gradus.models.rewards.structured import answer_text

_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMBERS = re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})(?!\d)")
_NAMED = re.compile(
    rf"\b({'|'.join(_NAMES)})[a-z]*\.?(?: \d{{1,2}}(?:st|nd|rd|th)?)?,? (?:of )?(\d{{4}})(?!\d)", re.IGNORECASE
)


@component("reward", name="month_distance", paper="arXiv 2505.13508")
def judge_month_distance(row: Row, gold: str, max_chars: int, *, decay: Annotated[float, Ge(0.0)] = 0.1) -> Verdict:
    """R = exp(-decay |m - m'|), m and m' the stated and the gold month, in months.

    Time-R1 (arXiv 2505.13508), where the decay grows during the training: a schedule here. Months are `2024-05` or `May
    2024`, with or without a day; the last one in the answer counts. Below 1 it is no verdict. Deviation: the paper's
    terms for the format and for consistency are rewards of their own.

    Args:
        row: The completion.
        gold: The month.
        max_chars: Longer completions are judged by their last characters.
        decay: Decay by month of distance.
    """
    wanted = month(gold)
    if wanted is None:
        return failed(f"the gold {gold[:80]!r} is no month")
    text = answer_text(row, max_chars)
    found = None if text is None else month(stated_answer(text) or "")
    if found is None:
        return unparsed()
    return Verdict(math.exp(-decay * abs(found - wanted)), extracted=f"{found // 12:04}-{found % 12 + 1:02}")


def month(text: str) -> int | None:
    """Return the last month that a text names, counted from the year 0; None without one.

    >>> month("in May 2024") == month("2024-05-17") == 2024 * 12 + 4
    True
    """
    places = [(match.start(), int(match[1]), int(match[2])) for match in _NUMBERS.finditer(text)]
    places += [(match.start(), int(match[2]), _NAMES.index(match[1].lower()) + 1) for match in _NAMED.finditer(text)]
    known = [(at, year * 12 + number - 1) for at, year, number in places if 1 <= number <= 12]
    return max(known)[1] if known else None
