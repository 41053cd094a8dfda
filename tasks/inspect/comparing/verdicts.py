"""Verdicts on pairs of methods: better, worse, equivalent or undecided, at the level of all pairs together.

A difference is shown if 0 can be rejected, equivalence if a difference of the margin or more can be (two one-sided
tests, TOST); each by p values that are adjusted for the number of pairs (Holm). A difference that is shown and lies
within the margin is an equivalence: the margin says what matters. Nothing is called equivalent at a margin below the
smallest detectable difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

import numpy as np

from gradus.data.arrays import Floats
from gradus.data.intervals import LEVEL, Mean, detectable, holm, mean_of
from gradus.data.records import Figure
from gradus.tasks.config.evaluate import MARGIN

Verdict = Literal["better", "worse", "equivalent", "undecided"]


class Side(TypedDict):
    """The cost of one method: completion tokens and seconds a training, mean over seeds."""

    method: str
    tokens: float
    seconds: float


class Difference(TypedDict):
    """The pass@1 of one method less that of another, paired by problem and seed, and what follows from it.

    The interval is that of the pair alone, 95 %; p values are adjusted for all pairs. `detectable` is the smallest
    difference that the data detect with a chance of 80 %, at the level of all pairs.
    """

    method: str
    than: str
    difference: Figure
    by_seed: list[float]
    p_different: float
    p_equivalent: float
    detectable: float
    verdict: Verdict
    sides: NotRequired[list[Side]]
    shared_tokens: NotRequired[float]
    """Share of the tokens of both that went into artifacts that both use."""


@dataclass(frozen=True)
class Rule:
    """By what pairs are judged: the margin of equivalence, and the difference that was planned to be detectable."""

    margin: float = MARGIN
    planned: float | None = None
    """None if there was no plan, or it rests on assumptions alone."""


def judge_pairs(pairs: Sequence[tuple[str, str, Floats]], rule: Rule) -> list[Difference]:
    """Judge pairs (method, than, (S, P) differences of pass rates)."""
    if not pairs:
        return []
    means = [mean_of(values) for _, _, values in pairs]
    different = holm(np.array([mean.p_different() for mean in means]))
    equivalent = holm(np.array([mean.p_equivalent(rule.margin) for mean in means]))
    return [
        _judged(pair, mean, (float(p), float(q)), detectable(mean.error, mean.freedom, LEVEL / len(pairs)), rule)
        for pair, mean, p, q in zip(pairs, means, different, equivalent, strict=True)
    ]


def too_narrow(found: Sequence[Difference], rule: Rule) -> list[str]:
    """Remark on a margin at which nothing can be called equivalent."""
    least = [rule.planned] if rule.planned is not None else [each["detectable"] for each in found]
    if not least or rule.margin >= max(least):
        return []
    where = "the plan" if rule.planned is not None else "these data" if rule.margin < min(least) else "some pairs"
    text = f"the smallest detectable difference of {where} is {100 * max(least):.1f} points"
    return [f"{text}, above the margin of {100 * rule.margin:g}: `equivalent` cannot be concluded there"]


def _judged(
    pair: tuple[str, str, Floats], mean: Mean, p_values: tuple[float, float], least: float, rule: Rule
) -> Difference:
    method, than, values = pair
    different, equivalent = p_values
    floor = least if rule.planned is None else rule.planned
    verdict: Verdict = "undecided"
    if equivalent <= LEVEL and rule.margin >= floor:
        verdict = "equivalent"
    elif different <= LEVEL:
        verdict = "better" if mean.value > 0 else "worse"
    return {
        "method": method,
        "than": than,
        "difference": mean.interval().as_dict(),
        "by_seed": values.mean(axis=1).tolist(),
        "p_different": different,
        "p_equivalent": equivalent,
        "detectable": least,
        "verdict": verdict,
    }
