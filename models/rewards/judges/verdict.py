r"""The reward `verdict`: what a model that judges other rows says at the end of its answer.

    judge({"completion": "Both are short.\n[[B]]"}, "", 0).value                                   # 0.0: not the first
    judge({"completion": "Rating: [[7]]"}, "", 0, choices=(), low=0, high=10).value                # 0.7

The last match of `pattern` behind the thinking counts. It is one of `choices`, of which the first is worth 1, the last
0 and the others lie between at equal distances ("A", "tie", "B"); without choices it is a number from `low` to `high`.
An answer without a verdict has no reward, or the reward `unread` if that is set.
"""

import re
from typing import Annotated

from gradus.components import REGEX, component
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Row, Verdict, failed
from gradus.models.rewards.text import last_match, strip_invisible, visible_text


@component("reward", name="verdict")
def judge(
    row: Row,
    gold: str,  # noqa: ARG001 - every reward is called alike
    max_chars: int,
    *,
    pattern: Annotated[str, REGEX] = r"\[\[\s*([^\[\]]+?)\s*\]\]",
    choices: tuple[str, ...] = ("A", "B"),
    low: float = 0.0,
    high: float = 10.0,
    unread: float | None = None,
) -> Verdict:
    """The last verdict in the answer of a judge, from 0 to 1; says nothing about correctness.

    Args:
        row: The completion.
        gold: Not read.
        max_chars: Longer completions are judged by their last characters.
        pattern: Regular expression of a verdict; its first group, if it has one, is what is read.
        choices: What a verdict may be, from the best to the worst; empty for a number.
        low: The number that is worth 0.
        high: The number that is worth 1.
        unread: Value of an answer without a verdict; none leaves it unjudged.
    """
    text = visible_text(row["completion"], max_chars)
    found = None if text is None else last_match(re.compile(pattern), strip_invisible(text))
    said = "" if found is None else (found[1] if found.re.groups else found[0]) or ""
    value = _of_choices(said, choices) if choices else _of_number(said, low, high)
    if value is None:
        return failed("the answer has no verdict") if unread is None else Verdict(unread)
    return Verdict(value, extracted=said[:MAX_EXTRACTED_CHARS])


def _of_choices(said: str, choices: tuple[str, ...]) -> float | None:
    known = [choice.casefold() for choice in choices]
    if said.casefold() not in known:
        return None
    return 1.0 - known.index(said.casefold()) / max(len(known) - 1, 1)


def _of_number(said: str, low: float, high: float) -> float | None:
    try:
        value = float(said)
    except ValueError:
        return None
    return (value - low) / (high - low) if low <= value <= high and low < high else None
