"""The reward `chrf`: runs of characters that a completion shares with a reference text."""

from collections import Counter
from typing import Annotated

from annotated_types import Ge

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.structured import answer_text


@component("reward", name="chrf", paper="aclanthology W15-3049")
def judge_chrf(
    row: Row, gold: str, max_chars: int, *, order: Annotated[int, Ge(1)] = 6, beta: Annotated[float, Ge(0.0)] = 2.0
) -> Verdict:
    """ChrF: F = (1 + beta^2) P R / (beta^2 P + R), P and R the mean shares of common runs of n characters over n.

    Popovic 2015, with n from 1 to `order`, as in sacrebleu: white space is removed, and a length of run counts only if
    both texts have one. The lexical reward of translations (MT-R1-Zero). Between 0 and 1 it is no verdict.

    Args:
        row: The completion.
        gold: The reference.
        max_chars: Longer completions are judged by their last characters.
        order: Length of the longest runs, characters.
        beta: Weight of the recall.
    """
    if not gold.split():
        return failed(f"the reference {gold[:80]!r} has no characters")
    return Verdict(chrf(answer_text(row, max_chars) or "", gold, order, beta))


def chrf(said: str, reference: str, order: int = 6, beta: float = 2.0) -> float:
    """Return chrF of two texts, from 0 to 1."""
    said, reference = "".join(said.split()), "".join(reference.split())
    shares = [
        (common / sum(ours.values()), common / sum(theirs.values()))
        for ours, theirs in ((_runs(said, n), _runs(reference, n)) for n in range(1, order + 1))
        if ours and theirs
        for common in (sum((ours & theirs).values()),)
    ]
    if not shares:
        return 0.0
    precision, recall = (sum(of) / len(shares) for of in zip(*shares, strict=True))
    total = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / total if total else 0.0


def _runs(text: str, size: int) -> Counter[str]:
    return Counter(text[at : at + size] for at in range(len(text) - size + 1))
