"""The reward `relevance`: words that a completion shares with its question or reference, its length and repetitions."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Gt

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.structured import answer_text

_PIECE = re.compile(r"\w+|[^\w\s]+")
_WORD = re.compile(r"\w+")
_RUN = 3


@component("reward", name="relevance", paper="arXiv 2402.03469", columns=("question", "messages"))
def judge_relevance(
    row: Row,
    gold: str | None,
    max_chars: int,
    *,
    query: Literal["by_gold", "open", "closed"] = "by_gold",
    unit: Annotated[float, Gt(0.0)] = 100.0,
    longest: Annotated[float, Gt(0.0)] = 512.0,
) -> Verdict:
    """R^3: R = rel(q, o) (L / unit) U of an open question q, rel(a, o) (longest / unit) U of one with an answer a.

    Regularized Relevance Reward (arXiv 2402.03469): o has L words and signs, U is the share of its runs of three that
    differ, 1 without a run; the factors reward length in place of copies of the question, and punish repetition. It is
    no verdict. Deviations: rel is the cosine of counts of words in any case, from 0 to 1, where the authors take the
    product of a retriever's vectors (Contriever), scaled from 3.5 to `longest` / `unit`; a question is of the second
    kind if the row has an answer, where they ask a classifier.

    Args:
        row: The completion.
        gold: The reference.
        max_chars: Longer completions are judged by their last characters.
        query: Kind of all questions, or by the answer of each row.
        unit: Words and signs of an answer that multiply the relevance by 1.
        longest: Words and signs of which the relevance to a reference is worth as much.
    """
    reference = _words(gold or "")
    closed = query == "closed" or (query == "by_gold" and bool((gold or "").strip()))
    wanted = reference if closed else _words(_question(row))
    if not wanted:
        return failed(f"the {'reference' if closed else 'question'} has no words")
    said = answer_text(row, max_chars) or ""
    pieces = _PIECE.findall(said)
    factor = longest if closed else len(pieces)
    return Verdict(cosine(_words(said), wanted) * factor / unit * distinct(pieces))


def cosine(one: Counter[str], other: Counter[str]) -> float:
    """Return the cosine of the counts of two texts' words, from 0 to 1; 0 for a text without words.

    >>> cosine(Counter(["a", "a", "b"]), Counter(["a", "a", "b"]))
    1.0
    """
    product = sum(count * other[word] for word, count in one.items())
    squares = math.prod(sum(count * count for count in each.values()) for each in (one, other))
    return min(1.0, product / math.sqrt(squares)) if squares else 0.0


def distinct(pieces: Sequence[str]) -> float:
    """Return the share of the runs of three pieces that differ; 1 of fewer than three pieces.

    >>> distinct(list("abcabc"))
    0.75
    """
    runs = [*zip(*(pieces[at:] for at in range(_RUN)), strict=False)]
    return len({*runs}) / len(runs) if runs else 1.0


def _words(text: str) -> Counter[str]:
    return Counter(word.casefold() for word in _WORD.findall(text))


def _question(row: Row) -> str:
    """Return the question of a row; of one with messages the last one."""
    question, messages = row.get("question"), row.get("messages")
    return question or (messages[-1]["content"] if messages else "")
