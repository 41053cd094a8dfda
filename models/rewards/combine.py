"""Several rewards' verdicts on one completion become one score.

    reward = sum of weight * value, and null if one of them failed (a missing part is never counted as 0) or if the sum
    overflows. A reward that does not judge this kind of row has no part in it.

One reward decides `correct`: the one chosen (`decides`); else the first that judges correctness (math, numeric, exact);
else a user's function, if there is exactly one. Of the deciding reward these count, the first that there is:

    1. its own verdict (the built-in judges; a user's function that returns `correct`)
    2. value >= correct_at, if a threshold is stated
    3. value 1 is correct, value 0 is wrong; any other value makes no claim (correct and outcome stay null)

If no reward decides (a format alone, several functions), a stated threshold is compared with the combined reward;
without one there is no claim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradus.components.marks import Mark
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import Outcome, Verdict
from gradus.models.rewards.marked import marks_of_verdict


@dataclass(frozen=True)
class Score:
    """Row of the scores table for one completion."""

    reward: float | None
    correct: bool | None
    components: dict[str, float]
    extracted: str | None
    outcome: Outcome
    error: str
    marks: tuple[Mark, ...] = ()


def component_names(specs: Sequence[RewardSpec]) -> list[str]:
    """A short, unique name for each reward: its own, a function's, numbered where one occurs twice."""
    names: list[str] = []
    for spec in specs:
        base = spec.function or spec.name
        same = sum(n == base or n.startswith(f"{base}_") for n in names)
        names.append(f"{base}_{same + 1}" if base in names else base)
    return names


def deciding_reward(specs: Sequence[RewardSpec], chosen: int | None = None) -> int | None:
    """Index of the reward that says whether an answer is correct, `chosen` before all; None if none does."""
    if chosen is not None:
        return chosen
    judges = [i for i, spec in enumerate(specs) if spec.judges_correctness]
    if judges:
        return judges[0]
    functions = [i for i, spec in enumerate(specs) if spec.is_user]
    return functions[0] if len(functions) == 1 else None


def combine(
    names: Sequence[str],
    weights: Sequence[float],
    verdicts: Sequence[Verdict | None],
    deciding: int | None,
    correct_at: float | None = None,
) -> Score:
    """Return one score of the verdicts of all rewards on one completion; None is one of a reward for other rows.

    >>> both = (Verdict(1.0, "correct", "34"), Verdict(0.0))
    >>> combine(("math", "format"), (1.0, 0.5), both, deciding=0).reward
    1.0
    >>> combine(("graded",), (1.0,), (Verdict(0.7),), deciding=0, correct_at=0.5).correct
    True
    """
    judged = [(n, w, v) for n, w, v in zip(names, weights, verdicts, strict=True) if v is not None]
    components = {n: v.value for n, _, v in judged if v.value is not None}
    extracted = next((v.extracted for *_, v in judged if v.extracted is not None), None)
    marks = tuple(mark for *_, v in judged for mark in marks_of_verdict(v))
    if not judged:
        return Score(None, None, {}, None, "error", "no reward judges this kind of problem")
    failures = [(n, v) for n, _, v in judged if v.value is None]
    if failures:
        name, failure = failures[0]
        return Score(None, None, components, extracted, failure.outcome, f"{name}: {failure.error}", marks)
    reward = sum(w * components[n] for n, w, _ in judged)
    if not math.isfinite(reward):
        return Score(None, None, components, extracted, "error", f"the weighted sum of the rewards is {reward}", marks)
    decides = None if deciding is None else verdicts[deciding]
    outcome = _threshold(reward, correct_at) if decides is None else _claim(decides, correct_at)
    return Score(reward, outcome == "correct" if outcome else None, components, extracted, outcome, "", marks)


def _claim(verdict: Verdict, correct_at: float | None) -> Outcome:
    if verdict.outcome or verdict.abstains or verdict.value is None:
        return verdict.outcome
    if correct_at is not None:
        return _threshold(verdict.value, correct_at)
    if verdict.value == 1.0:
        return "correct"
    return "wrong" if verdict.value == 0.0 else ""


def _threshold(value: float, correct_at: float | None) -> Outcome:
    if correct_at is None:
        return ""
    return "correct" if value >= correct_at else "wrong"
