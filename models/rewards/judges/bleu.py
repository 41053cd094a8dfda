r"""The reward `bleu`: how many runs of words a completion shares with a reference text, from 0 to 1.

The words are those of mteval's tokenizer 13a, in the form in which sacrebleu has it: punctuation apart, but for the
dots and commas within numbers.
"""

import math
import re
from collections import Counter
from typing import Annotated

from annotated_types import Ge

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.text import strip_invisible, visible_text

_APART = (
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))


@component("reward", name="bleu", paper="arXiv 2505.11080")
def judge_bleu(row: Row, gold: str, max_chars: int, *, order: Annotated[int, Ge(1)] = 4) -> Verdict:
    """BLEU of the completion, smoothed, against the answer as its reference: 1 for the same words, 0 for none.

    BLEUBERI (arXiv 2505.11080): min(1, exp(1 - r / c)) times the geometric mean of (m_n + 1) / (w_n + 1) for n = 1 to
    4, with m_n of the w_n runs of n words found in the reference, no more often than there, and c and r words in
    completion and reference (Papineni et al. 2002, smoothed as Lin and Och 2004). Between 0 and 1 it is no verdict.
    Deviation: one reference, where the authors take those of several models.

    Args:
        row: The completion.
        gold: The reference.
        max_chars: Longer completions are judged by their last characters.
        order: Length of the longest runs, words.
    """
    reference = words(gold)
    if not reference:
        return failed(f"the reference {gold[:80]!r} has no words")
    text = visible_text(row["completion"], max_chars)
    said = words(strip_invisible(text)) if text else []
    return Verdict(bleu(said, reference, order))


def bleu(said: list[str], reference: list[str], order: int = 4) -> float:
    """Return the smoothed BLEU of some words against those of a reference; 0 for none."""
    if not said:
        return 0.0
    total = 0.0
    for size in range(1, order + 1):
        found, known = _runs(said, size), _runs(reference, size)
        matched = sum((found & known).values())
        total += math.log((matched + 1) / (sum(found.values()) + 1))
    brevity = min(0.0, 1 - len(reference) / len(said))
    return math.exp(brevity + total / order)


def words(text: str) -> list[str]:
    """Return the words of a text and its punctuation.

    >>> words("It is 1,200.5, not 3-4!")
    ['It', 'is', '1,200.5', ',', 'not', '3', '-', '4', '!']
    """
    text = text.replace("-\n", "").replace("\n", " ")
    for entity, sign in _ENTITIES:
        text = text.replace(entity, sign)
    text = f" {text} "
    for pattern, parted in _APART:
        text = pattern.sub(parted, text)
    return text.split()


def _runs(of: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(of[at : at + size]) for at in range(len(of) - size + 1))
