"""Trainings of several methods side by side: gains, paired differences, wins by difficulty, cost by stage.

A method is a recipe with its settings; it has one training for each seed. All figures are pass@1 on the main suite, of
the last checkpoint: one that was chosen by its evaluation would look better than it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats
from gradus.data.errors import BadInputError
from gradus.data.metrics import Interval
from gradus.data.paired import BANDS, bootstrap_crossed, difficulty_band, sole_winners
from gradus.data.records import Figure
from gradus.data.seeds import derive_seed
from gradus.tasks.inspect.comparing.trainings import StageCost, Training, pass_rates, problem_ids

RESAMPLES = 5000
CONFIDENCE = 0.95
_UNEQUAL = 1.1
"""Methods whose costs differ by more than this factor are remarked on."""


class Point(TypedDict):
    """pass@1 after a round that every seed was evaluated after; tokens sampled by then, mean over seeds."""

    round: int
    tokens: float
    pass_at_1: Figure


class MethodFigures(TypedDict):
    """What one method came to: pass@1 before and after, costs a training, and its runs, one a seed."""

    method: str
    runs: list[str]
    seeds: list[int]
    rounds: list[int]
    tokens: float
    seconds: float
    before: Figure
    after: Figure
    gain: Figure
    stages: dict[str, StageCost]
    curve: list[Point]


class Difference(TypedDict):
    """The pass@1 of one method less that of another, paired by problem and seed; `differs` if 0 is outside."""

    method: str
    than: str
    difference: Figure
    differs: bool


class Band(TypedDict):
    """Problems of one difficulty: pass@1 of each method, and at how many problems it alone is the best."""

    band: str
    problems: int
    pass_at_1: dict[str, float]
    wins: dict[str, int]


class Comparison(TypedDict):
    """Methods side by side."""

    budget: str
    seeds: int
    problems: int
    methods: list[MethodFigures]
    differences: list[Difference]
    by_difficulty: list[Band]
    remarks: list[str]


@dataclass(frozen=True)
class Method:
    """A recipe with its settings, and its trainings, one a seed, in the order in which seeds are paired."""

    name: str
    trainings: Sequence[Training]


def compare(methods: Sequence[Method], budget: str = "", remarks: Sequence[str] = ()) -> Comparison:
    """Compare methods on the problems of the first one's main suite.

    Raise BadInputError for evaluations of other problems, or if no problem has a verdict everywhere.
    """
    ids = problem_ids(methods[0].trainings[0])
    before = [np.stack([pass_rates(t, 0, ids) for t in m.trainings]) for m in methods]
    after = [np.stack([pass_rates(t, t.rounds, ids) for t in m.trainings]) for m in methods]
    judged = _judged_everywhere([*before, *after])
    before, after = [rate[:, judged] for rate in before], [rate[:, judged] for rate in after]
    said = [*remarks, *_left_out(judged), *_unequal_starts(methods, before), *_unequal_costs(methods, budget)]
    seeds = min(len(rate) for rate in after)
    if seeds == 1:
        said.append("one seed: the intervals say how problems differ, not how another seed would")
    return {
        "budget": budget,
        "seeds": seeds,
        "problems": int(judged.sum()),
        "methods": [
            _figures(i, method, before[i], after[i], _curve(i, method, ids, judged)) for i, method in enumerate(methods)
        ],
        "differences": [
            _difference(methods[j].name, methods[i].name, after[j][:seeds], after[i][:seeds], (i, j))
            for i, j in combinations(range(len(methods)), 2)
        ],
        "by_difficulty": _by_difficulty([m.name for m in methods], before, after),
        "remarks": said,
    }


def letters(found: Comparison) -> dict[str, str]:
    """Return a letter for each method, by its name; a number after Z."""
    names = [method["method"] for method in found["methods"]]
    return {name: chr(ord("A") + i) if i < 26 else str(i + 1) for i, name in enumerate(names)}


def _judged_everywhere(rates: Sequence[Floats]) -> Bools:
    """Return which problems (P,) have a verdict in every evaluation."""
    judged = np.logical_not(np.isnan(np.concatenate(rates)).any(axis=0))
    if not judged.any():
        raise BadInputError(
            "no problem has a verdict in every evaluation", hint="evaluate with a reward that says what is correct"
        )
    return judged


def _left_out(judged: Bools) -> list[str]:
    missing = int((~judged).sum())
    return [f"{missing} of {len(judged)} problems are left out: some evaluation has no verdict"] if missing else []


def _unequal_starts(methods: Sequence[Method], before: Sequence[Floats]) -> list[str]:
    starts = [rate.mean() for rate in before]
    if max(starts) - min(starts) < 1e-9:
        return []
    told = ", ".join(f"{m.name} at {start:.3f}" for m, start in zip(methods, starts, strict=True))
    return [f"the methods did not start from the same pass@1: {told}"]


def _unequal_costs(methods: Sequence[Method], budget: str) -> list[str]:
    """Remark on trainings that are not at equal cost; a budget in rounds or seconds promises no equal tokens."""
    tokens = [float(np.mean([t.tokens for t in m.trainings])) for m in methods]
    if max(tokens) <= _UNEQUAL * max(1.0, min(tokens)):
        return []
    least, most = methods[int(np.argmin(tokens))].name, methods[int(np.argmax(tokens))].name
    how = f" under a budget of {budget}" if budget else ""
    return [f"not at equal cost{how}: {most} sampled {max(tokens):,.0f} tokens a training, {least} {min(tokens):,.0f}"]


def _interval(values: Floats, *purpose: object) -> Interval:
    rng = np.random.default_rng(derive_seed("compare", *purpose))
    return bootstrap_crossed(values, rng, resamples=RESAMPLES, confidence=CONFIDENCE)


def _figures(place: int, method: Method, before: Floats, after: Floats, curve: list[Point]) -> MethodFigures:
    trainings = method.trainings
    return {
        "method": method.name,
        "runs": [t.run for t in trainings],
        "seeds": [t.seed for t in trainings],
        "rounds": [t.rounds for t in trainings],
        "tokens": float(np.mean([t.tokens for t in trainings])),
        "seconds": float(np.mean([t.seconds for t in trainings])),
        "before": _interval(before, place, "before").as_dict(),
        "after": _interval(after, place, "after").as_dict(),
        "gain": _interval(after - before, place, "gain").as_dict(),
        "stages": _mean_costs(trainings),
        "curve": curve,
    }


def _mean_costs(trainings: Sequence[Training]) -> dict[str, StageCost]:
    """Costs by stage, means over seeds."""
    stages = dict.fromkeys(stage for t in trainings for stage in t.costs)
    none: StageCost = {"tokens": 0.0, "seconds": 0.0}
    costs = {stage: [t.costs.get(stage, none) for t in trainings] for stage in stages}
    return {
        stage: {
            "tokens": float(np.mean([cost["tokens"] for cost in each])),
            "seconds": round(float(np.mean([cost["seconds"] for cost in each])), 2),
        }
        for stage, each in costs.items()
    }


def _curve(place: int, method: Method, ids: pa.Array, judged: Bools) -> list[Point]:
    """Return pass@1 before training, after rounds that every seed was evaluated after, and at the end."""
    first = method.trainings[0]
    common = [r for r in first.evaluations if all(r in t.evaluations and r < t.rounds for t in method.trainings)]
    points: list[Point] = []
    for index in [*sorted(common), None]:
        rounds = [t.rounds if index is None else index for t in method.trainings]
        rates = [pass_rates(t, r, ids)[judged] for t, r in zip(method.trainings, rounds, strict=True)]
        tokens = [t.tokens_by_round[r] for t, r in zip(method.trainings, rounds, strict=True)]
        if not np.isnan(rates).any():
            figure = _interval(np.stack(rates), place, "curve", max(rounds)).as_dict()
            points.append({"round": max(rounds), "tokens": float(np.mean(tokens)), "pass_at_1": figure})
    return points


def _difference(name: str, than: str, rate: Floats, other: Floats, pair: tuple[int, int]) -> Difference:
    found = _interval(rate - other, "difference", *pair)
    differs = not found.low <= 0 <= found.high
    return {"method": name, "than": than, "difference": found.as_dict(), "differs": differs}


def _by_difficulty(names: Sequence[str], before: Sequence[Floats], after: Sequence[Floats]) -> list[Band]:
    """Return figures by the pass rate before training, means over seeds."""
    band = difficulty_band(np.stack([rate.mean(axis=0) for rate in before]).mean(axis=0))
    rate = np.stack([each.mean(axis=0) for each in after])
    alone = sole_winners(rate)
    return [
        {
            "band": BANDS[b],
            "problems": int((band == b).sum()),
            "pass_at_1": {name: float(rate[i, band == b].mean()) for i, name in enumerate(names)},
            "wins": {name: int(alone[i, band == b].sum()) for i, name in enumerate(names)},
        }
        for b in np.unique(band).tolist()
    ]
