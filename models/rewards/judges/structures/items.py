"""The reward `items`: the share of a set or a list that a completion names."""

import re
from typing import Annotated, Any

from annotated_types import Gt

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, unparsed
from gradus.models.rewards.judges.exact import normalise, stated_answer
from gradus.models.rewards.judges.texts.rouge_l import lcs
from gradus.models.rewards.structured import answer_text, known, stated

_SEPARATOR = re.compile(r"[,;\n]")


@component("reward", name="items", paper="arXiv 2502.20127", columns=("items", "extra"))
def judge_items(
    row: Row, gold: str, max_chars: int, *, beta: Annotated[float, Gt(0.0)] = 1.0, ordered: bool = False
) -> Verdict:
    """F = (1 + beta^2) P R / (beta^2 P + R) of the items that are named, P = hits / named, R = hits / wanted.

    SoRFT (arXiv 2502.20127) for the files, functions and lines of a patch. The gold is `items` (a column, or in
    `extra`), or the answer, as a JSON list or parted by commas, semicolons or lines; so is the completion's. Items are
    compared as `exact` compares answers, each once; with `ordered` hits are the longest common subsequence, each time.
    Between 0 and 1 it is no verdict.

    Args:
        row: The completion.
        gold: The items, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        beta: Weight of the recall.
        ordered: True if items count in their order only.
    """
    wanted = _items(known(row, gold, "items"), gold)
    if not wanted:
        return failed("the row has no items: a list of texts or numbers")
    text = answer_text(row, max_chars)
    named = [] if text is None else _items(stated(row, max_chars), stated_answer(text) or "")
    if not named:
        return unparsed()
    if not ordered:
        named, wanted = sorted(set(named)), sorted(set(wanted))
    hits = lcs(named, wanted)
    precision, recall = hits / len(named), hits / len(wanted)
    value = (1 + beta**2) * precision * recall / (beta**2 * precision + recall) if hits else 0.0
    return Verdict(value, extracted=", ".join(named)[:1000])


def _items(listed: Any, text: str) -> list[str]:
    """Return the items of a JSON list, else of a text."""
    parts = listed if isinstance(listed, list) else _SEPARATOR.split(text)
    return [item for item in (normalise(str(part)) for part in parts) if item]
