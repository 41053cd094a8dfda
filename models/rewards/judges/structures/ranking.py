"""The reward `ndcg`: the gain of a ranking, discounted by the place."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, unparsed
from gradus.models.rewards.structured import is_number, known, stated


@component("reward", name="ndcg", paper="GroupRank", columns=("relevance", "extra"))
def judge_ndcg(
    row: Row,
    gold: str,
    max_chars: int,
    *,
    top: Annotated[int, Ge(0)] = 0,
    alignment: Annotated[float, Ge(0.0), Le(1.0)] = 0.0,
) -> Verdict:
    """NDCG = DCG / DCG of the best order, DCG = sum over places k of (2^rel - 1) / log2(k + 1).

    Jarvelin and Kekalainen 2002, with the gain 2^rel - 1. `relevance` (a column, or in `extra`), or the answer as JSON,
    is {document: number from 0 on}. The completion states {document: score}, or a list of documents, the best first;
    of equal scores the least relevant comes first, and documents that it leaves out come last in that order. With
    `alignment`, the share that GroupRank ("GroupRank: A Groupwise Reranking Paradigm Driven by Reinforcement
    Learning") mixes in for scores: 1 - half of the sum of |p - q|, p and q the scores and the relevances over their
    sums. Between 0 and 1 it is no verdict. Deviation: metric and mixture are guessed, the paper's are not published.

    Args:
        row: The completion.
        gold: The relevances, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        top: Places that count; 0 for all.
        alignment: Share of the alignment of scores in the value.
    """
    relevance, said = known(row, gold, "relevance"), stated(row, max_chars)
    if not _is_scores(relevance) or min(relevance.values()) < 0 or not 0 < max(relevance.values()) <= 100:
        return failed("the row has no relevance: {document: number from 0 to 100}, one of them above 0")
    if not _is_scores(said) and not (isinstance(said, list) and said and all(isinstance(each, str) for each in said)):
        return unparsed()
    value = ndcg(ranked(said, relevance), relevance, top)
    aligned = _alignment(said, relevance) if isinstance(said, dict) else value
    return Verdict((1 - alignment) * value + alignment * aligned, extracted=str(said)[:1000])


def ndcg(order: Sequence[str], relevance: Mapping[str, float], top: int = 0) -> float:
    """Return NDCG of an order of all documents."""
    best = sorted(relevance.values(), reverse=True)
    return _dcg([relevance[name] for name in order][: top or None]) / _dcg(best[: top or None])


def ranked(said: Mapping[str, float] | Sequence[str], relevance: Mapping[str, float]) -> list[str]:
    """Return the documents in the order that was said, ties and those left out in the worst one."""
    if not isinstance(said, Mapping):
        said = {name: -place for place, name in reversed(list(enumerate(said)))}  # the first time that it stands there
    return sorted(relevance, key=lambda name: (-said.get(name, -math.inf), relevance[name]))


def _dcg(gains: Sequence[float]) -> float:
    return sum((2**gain - 1) / math.log2(place + 2) for place, gain in enumerate(gains))


def _alignment(said: Mapping[str, float], relevance: Mapping[str, float]) -> float:
    scores = {name: max(float(said.get(name, 0.0)), 0.0) for name in relevance}
    total, wanted = sum(scores.values()), sum(relevance.values())
    if not 0 < total < math.inf:
        return 0.0
    return 1 - sum(abs(scores[name] / total - relevance[name] / wanted) for name in relevance) / 2


def _is_scores(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(is_number(each) for each in value.values())
