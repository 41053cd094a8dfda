"""The reward `constraints`: the share of a problem's constraints that a completion meets, checked by code."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.structured import answer_text, known, parsed

_SENTENCE = re.compile(r"[^.!?]*[A-Za-z0-9][^.!?]*(?:[.!?]+|$)")
_BULLET = re.compile(r"^[ \t]*(?:[*+-]|\d+[.)])[ \t]+\S", re.MULTILINE)

Check = Callable[[str, Any], bool]
_OF_NUMBER: Mapping[str, Callable[[str], int]] = {
    "words": lambda text: len(text.split()),
    "characters": len,
    "sentences": lambda text: len(_SENTENCE.findall(text)),
    "paragraphs": lambda text: len([part for part in re.split(r"\n\s*\n", text) if part.strip()]),
    "lines": lambda text: len([line for line in text.splitlines() if line.strip()]),
    "bullets": lambda text: len(_BULLET.findall(text)),
}
"""Quantities: `min_words`, `max_words` and `num_words` bound one, and so on."""
_OF_TEXT: Mapping[str, Check] = {
    "contains": lambda text, value: value.casefold() in text.casefold(),
    "excludes": lambda text, value: value.casefold() not in text.casefold(),
    "starts_with": lambda text, value: text.casefold().startswith(value.casefold()),
    "ends_with": lambda text, value: text.casefold().endswith(value.casefold()),
}
_OF_ANY: Mapping[str, Check] = {
    "lower_case": lambda text, value: (text == text.lower()) is value,
    "upper_case": lambda text, value: (text == text.upper()) is value,
    "commas": lambda text, value: ("," in text) is value,
    "json": lambda text, value: (parsed(text) is not None) is value,
}
"""Properties that are, or with false are not, there."""


@component("reward", name="constraints", paper="arXiv 2506.09942", columns=("constraints", "extra"))
def judge_constraints(
    row: Row,
    gold: str,  # noqa: ARG001 - every reward is called alike
    max_chars: int,
    *,
    every: bool = False,
) -> Verdict:
    """Share of the constraints that are met; with `every` 1 if all are, 0 otherwise.

    The half of VerIF (arXiv 2506.09942) and of Light-IF (arXiv 2508.03178) that code can check; a judge is a reward of
    its own. `constraints` (a column, or in `extra`) is a list of tables with one key or more: min_words, max_words,
    num_words, and the same of characters, sentences, paragraphs, lines and bullets; contains, excludes, starts_with,
    ends_with; lower_case, upper_case, commas and json, true or false. Each key is a constraint. Between 0 and 1 it is
    no verdict.

    Args:
        row: The completion.
        gold: Not read.
        max_chars: Longer completions are judged by their last characters.
        every: True if only a completion that meets all of them is rewarded.
    """
    listed = known(row, "", "constraints")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) and each for each in listed):
        return failed("the row has no constraints: a list of tables such as {max_words = 50}")
    pairs = [(key, value) for each in listed for key, value in each.items()]
    checks = [_check(key, value) for key, value in pairs]
    unknown = [f"{key} = {value!r}" for (key, value), check in zip(pairs, checks, strict=True) if check is None]
    if unknown:
        return failed(f"there is no constraint {unknown[0][:100]}")
    text = (answer_text(row, max_chars) or "").strip()
    met = sum(bool(text) and check(text, value) for (_, value), check in zip(pairs, checks, strict=True) if check)
    return Verdict(float(met == len(pairs)) if every else met / len(pairs))


def _check(key: str, value: Any) -> Check | None:
    """Return the check of a constraint; None if there is none of this name for such a value."""
    bound, _, quantity = key.partition("_")
    if quantity in _OF_NUMBER and isinstance(value, int) and not isinstance(value, bool):
        count, compare = _OF_NUMBER[quantity], {"min": operator.ge, "max": operator.le, "num": operator.eq}.get(bound)
        return None if compare is None else lambda text, number: compare(count(text), number)
    if isinstance(value, str):
        return _OF_TEXT.get(key) if value else None
    return _OF_ANY.get(key) if isinstance(value, bool) else None
