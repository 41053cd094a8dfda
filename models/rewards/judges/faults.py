r"""The reward `faults`: the steps that a critique of an answer with numbered steps calls wrong.

    judge({"completion": "2 adds wrongly.\n[[2, 4]]"}, "", 0).marks    # two marks `wrong`, of the values 2 and 4

The last match of `pattern` behind the thinking counts, and every whole number in it is a step; without one the critique
finds no fault. Each mark stands where the critique names the step. A critique without a match has no reward.
"""

import re
from itertools import islice
from typing import Annotated

from gradus.components import REGEX, component
from gradus.components.marks import MAX_MARKS, Mark
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Row, Verdict, failed
from gradus.models.rewards.marked import MarkedVerdict
from gradus.models.rewards.text import last_match, visible_text

_NUMBER = re.compile("[0-9]{1,6}")


@component("reward", name="faults")
def judge(
    row: Row,
    gold: str,  # noqa: ARG001 - every reward is called alike
    max_chars: int,
    *,
    pattern: Annotated[str, REGEX] = r"\[\[([^\[\]]*)\]\]",
) -> Verdict:
    """1 for a critique that can be read, with a mark `wrong` for each step that it names; nothing about correctness.

    Args:
        row: The completion.
        gold: Not read.
        max_chars: Longer completions are judged by their last characters.
        pattern: Regular expression of the list of wrong steps; its first group, if it has one, is what is read.
    """
    whole = row["completion"]
    text = visible_text(whole, max_chars)
    found = None if text is None else last_match(re.compile(pattern), text)
    if text is None or found is None:
        return failed("the critique names no steps")
    group = 1 if found.re.groups and found[1] is not None else 0
    before = len(whole) - len(text) + found.start(group)
    named = islice(_NUMBER.finditer(found[group]), MAX_MARKS)
    marks = tuple(Mark("wrong", before + each.start(), before + each.end(), float(each[0])) for each in named)
    return MarkedVerdict(1.0, extracted=found[group][:MAX_EXTRACTED_CHARS], marks=marks)
