"""The rewards `key_points` and `terms`: words of a reference that a completion must have, in their order."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.judges.texts.rouge_l import lcs
from gradus.models.rewards.structured import answer_text, known


@component("reward", name="key_points", paper="arXiv 2601.18533", columns=("key_points", "extra"))
def judge_key_points(row: Row, gold: str, max_chars: int) -> Verdict:
    """Keywords in order: r = mean over key points of max over variants of lcs(a, b) / max(|a|, |b|).

    RLVRR's content reward: a and b are the keywords of the variant in the completion and in the reference, each time
    they occur, whole words in any case. `key_points` (a column, or in `extra`) is a list of key points, each a list of
    variants, each a list of keywords; a variant that the reference lacks stands for itself. Between 0 and 1 it is no
    verdict. Deviation: the style checks, functions in the data, are left to `constraints`.

    Args:
        row: The completion.
        gold: The reference.
        max_chars: Longer completions are judged by their last characters.
    """
    points = known(row, "", "key_points")
    if not _are_points(points):
        return failed("the row has no key_points: a list of key points, each a list of lists of keywords")
    text = answer_text(row, max_chars) or ""
    return Verdict(sum(max(_overlap(words, text, gold) for words in variants) for variants in points) / len(points))


def _are_points(points: Any) -> bool:
    return (
        isinstance(points, list)
        and bool(points)
        and all(
            isinstance(variants, list) and variants and all(_are_words(words) for words in variants)
            for variants in points
        )
    )


def _are_words(words: Any) -> bool:
    return isinstance(words, list) and bool(words) and all(isinstance(word, str) and word.strip() for word in words)


def _overlap(words: Sequence[str], text: str, reference: str) -> float:
    wanted = _occurring(words, reference) or [word.casefold() for word in words]
    found = _occurring(words, text)
    return lcs(found, wanted) / max(len(found), len(wanted))


def _occurring(words: Sequence[str], text: str) -> list[str]:
    """Return the keywords in the order in which a text has them."""
    longest_first = sorted({word.strip() for word in words}, key=len, reverse=True)
    pattern = "|".join(re.escape(word) for word in longest_first)
    return [match.casefold() for match in re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)]


@component("reward", name="terms", paper="arXiv 2505.21172", columns=("terms", "extra"))
def judge_terms(
    row: Row,
    gold: str,  # noqa: ARG001 - every reward is called alike
    max_chars: int,
    *,
    order: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
) -> Verdict:
    """Terms of a translation: r = (1 - order) h / n + order l / n, h of the n terms occur, l in the order of the list.

    TAT-R1 (arXiv 2505.21172) rewards how a translation has the key words of the reference, and in which order. `terms`
    (a column, or in `extra`) is the list of target terms in the order of the reference. Between 0 and 1 it is no
    verdict. Deviations: terms are given, where the paper finds them by a word aligner; the mixture is guessed.

    Args:
        row: The completion.
        gold: Not read.
        max_chars: Longer completions are judged by their last characters.
        order: Share of the order in the value.
    """
    terms = known(row, "", "terms")
    if not _are_words(terms):
        return failed("the row has no terms: a list of texts")
    found = _occurring(terms, answer_text(row, max_chars) or "")
    wanted = [term.strip().casefold() for term in terms]
    hits = sum(term in found for term in wanted)
    first = list(dict.fromkeys(found))
    return Verdict(((1 - order) * hits + order * lcs(first, list(dict.fromkeys(wanted)))) / len(wanted))


@component("reward", name="label", paper="arXiv 2503.16188", needs_gold=True)
def judge_label(row: Row, gold: str, max_chars: int) -> Verdict:
    """1 if the whole completion is the gold label, 0 otherwise: no thinking, no other word (No-Thinking-CLS-RL).

    CLS-RL (arXiv 2503.16188); its thinking form is `exact` with `format`. White space around it and case do not count.

    Args:
        row: The completion.
        gold: The label.
        max_chars: A longer completion is no label.
    """
    wanted, said = " ".join(gold.split()).casefold(), row["completion"]
    if not wanted:
        return failed("the gold label is empty")
    right = len(said) <= max_chars and " ".join(said.split()).casefold() == wanted
    return Verdict(float(right), "correct" if right else "wrong", said[:100])
