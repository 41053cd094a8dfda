"""The reward `rouge_l`: the longest sequence of words that a completion shares with a reference text."""

import re
from collections.abc import Hashable, Sequence
from typing import Annotated

from annotated_types import Gt

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.structured import answer_text


@component("reward", name="rouge_l", paper="aclanthology W04-1013")
def judge_rouge_l(row: Row, gold: str, max_chars: int, *, beta: Annotated[float, Gt(0.0)] = 1.0) -> Verdict:
    """ROUGE-L: F = (1 + beta^2) P R / (R + beta^2 P), P = lcs / said, R = lcs / words of the answer.

    Lin 2004, of one sequence; lcs is the length of the longest common subsequence of words. Words are runs of a to z
    and 0 to 9 in lower case, as in rouge-score, without stemming. Between 0 and 1 it is no verdict.

    Args:
        row: The completion.
        gold: The reference.
        max_chars: Longer completions are judged by their last characters.
        beta: Weight of the recall.
    """
    reference = plain_words(gold)
    if not reference:
        return failed(f"the reference {gold[:80]!r} has no words")
    return Verdict(rouge_l(plain_words(answer_text(row, max_chars) or ""), reference, beta))


def rouge_l(said: Sequence[Hashable], reference: Sequence[Hashable], beta: float = 1.0) -> float:
    """Return ROUGE-L of two sequences; 1 if both are empty."""
    if not said or not reference:
        return float(len(said) == len(reference))
    common = lcs(said, reference)
    precision, recall = common / len(said), common / len(reference)
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision) if common else 0.0


def lcs(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence.

    Hyyro 2004: a bit for each item of the first, a few operations on them for each item of the second.
    """
    places = dict[Hashable, int]()
    for at, item in enumerate(first):
        places[item] = places.get(item, 0) | 1 << at
    found = 0
    for item in second:
        matched = found | places.get(item, 0)
        found = matched & ~(matched - (found << 1 | 1))
    return found.bit_count()


def plain_words(text: str) -> list[str]:
    """Return the words of a text, lower case, without punctuation.

    >>> plain_words("It's 3-4, Ann!")
    ['it', 's', '3', '4', 'ann']
    """
    return re.findall("[a-z0-9]+", text.lower())
