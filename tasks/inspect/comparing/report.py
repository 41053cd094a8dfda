"""Trainings of several methods side by side: gains, paired differences, wins by difficulty, cost by stage.

A method is a recipe with its settings; it has one training for each seed. All figures are pass@1 on the main suite, of
the last checkpoint: one that was chosen by its evaluation would look better than it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gradus.data.arrays import Bools, Floats
from gradus.data.errors import BadInputError
from gradus.data.intervals import mean_of, share_interval
from gradus.data.records import Figure
from gradus.tasks.config.evaluate import MARGIN
from gradus.tasks.inspect.comparing.clusters import TEMPLATE, Problems, remarks_on
from gradus.tasks.inspect.comparing.difficulty import UNSPLIT, Start, by_difficulty, can_split
from gradus.tasks.inspect.comparing.figures import (
    Clusters,
    Comparison,
    MethodFigures,
    PlanNote,
    Point,
    SeedFigures,
    Setting,
)
from gradus.tasks.inspect.comparing.shares import DEAD, TRUNCATED, shared_tokens, training_share
from gradus.tasks.inspect.comparing.trainings import StageCost, Training, pass_rates, problem_ids, verdicts
from gradus.tasks.inspect.comparing.tuning import Tuned
from gradus.tasks.inspect.comparing.verdicts import Difference, Rule, judge_pairs, too_narrow

_UNEQUAL = 1.1
"""Methods whose costs differ by more than this factor are remarked on."""


@dataclass(frozen=True)
class Method:
    """A recipe with its settings, and its trainings, one a seed, in the order in which seeds are paired."""

    name: str
    trainings: Sequence[Training]

    @property
    def tokens(self) -> float:
        """Completion tokens of a training, mean over seeds."""
        return float(np.mean([t.tokens for t in self.trainings]))

    @property
    def seconds(self) -> float:
        """Seconds of a training, mean over seeds."""
        return float(np.mean([t.seconds for t in self.trainings]))


@dataclass(frozen=True)
class Terms:
    """Under what methods are compared."""

    budget: str = ""
    margin: float = MARGIN
    cluster: str = ""
    """The column of problems that belong together; empty: `template`, if problems have it."""
    plan: PlanNote | None = None
    settings: Sequence[Setting] = ()
    """Those that differ."""
    tuned: Tuned | None = None
    """The tuning of the methods; its problems are left out."""

    @property
    def rule(self) -> Rule:
        """By what pairs are judged."""
        return Rule(self.margin, self.plan["detectable"] if self.plan and self.plan["measured"] else None)


def compare(methods: Sequence[Method], terms: Terms | None = None, remarks: Sequence[str] = ()) -> Comparison:
    """Compare methods on the problems of the first one's main suite; one alone has its figures.

    Raise BadInputError for evaluations of other problems, or if no problem has a verdict everywhere.
    """
    terms = terms or Terms()
    first = methods[0].trainings[0]
    ids = problem_ids(first)
    before = [np.stack([pass_rates(t, 0, ids) for t in m.trainings]) for m in methods]
    after = [np.stack([pass_rates(t, t.rounds, ids) for t in m.trainings]) for m in methods]
    judged = _judged_everywhere([*before, *after])
    said = [*remarks, *_left_out(judged)]
    if terms.tuned:
        tuned = terms.tuned.has(first, ids)
        said += _used_to_tune(terms.tuned, int(tuned.sum()))
        judged = _not_tuned(judged, tuned)
    before, after = [rate[:, judged] for rate in before], [rate[:, judged] for rate in after]
    problems = Problems.of(first, terms.cluster, judged)
    seeds, start = min(len(rate) for rate in after), _start(methods, problems)
    differences = _differences(methods, after, problems, seeds, terms.rule)
    said += [*remarks_on(problems.cluster, terms.cluster), *_unequal_starts(methods, before)]
    said += [*_unequal_costs(methods, terms.budget), *([] if can_split(start) else [UNSPLIT])]
    if seeds == 1:
        said.append("one seed: the intervals say how problems differ, not how another seed would")
    found: Comparison = {
        "budget": terms.budget,
        "seeds": seeds,
        "problems": int(judged.sum()),
        "margin": terms.margin,
        "clusters": _clusters(problems, terms.cluster),
        "plan": terms.plan,
        "start": "same" if len(_starts(methods)) == 1 else "measured apart",
        "settings": list(terms.settings),
        "methods": [_figures(method, before[i], after[i], problems) for i, method in enumerate(methods)],
        "differences": differences,
        "by_difficulty": by_difficulty([m.name for m in methods], start, after),
        "remarks": [*said, *too_narrow(differences, terms.rule)],
    }
    return {**found, "tuning": terms.tuned.figures} if terms.tuned else found


def _clusters(problems: Problems, column: str) -> Clusters | None:
    return None if problems.cluster is None else {"column": column or TEMPLATE, "number": problems.num_units}


def _share(problems: Problems, rates: Floats) -> Figure:
    """The interval of pass rates (S, P)."""
    return share_interval(problems.units(rates)).as_dict()


def _starts(methods: Sequence[Method]) -> dict[str, Training]:
    """Return a training for each evaluation before training; one if all start from the same, equally measured."""
    return {str(t.evaluations[0]): t for m in methods for t in m.trainings}


def _start(methods: Sequence[Method], problems: Problems) -> Start:
    """Return the verdicts of all evaluations before training together."""
    found = [verdicts(t, 0, problems.ids) for t in _starts(methods).values()]
    n, k = (np.sum([pair[i] for pair in found], axis=0)[problems.compared] for i in (0, 1))
    return Start(n, k)


def _differences(
    methods: Sequence[Method], after: Sequence[Floats], problems: Problems, seeds: int, rule: Rule
) -> list[Difference]:
    """Judge each pair of methods, and say what both spent."""
    pairs = list(combinations(range(len(methods)), 2))
    found = judge_pairs(
        [(methods[j].name, methods[i].name, problems.units(after[j][:seeds] - after[i][:seeds])) for i, j in pairs],
        rule,
    )
    for each, (i, j) in zip(found, pairs, strict=True):
        both = (methods[j], methods[i])
        each["sides"] = [{"method": m.name, "tokens": m.tokens, "seconds": m.seconds} for m in both]
        each["shared_tokens"] = shared_tokens(both[0].trainings[:seeds], both[1].trainings[:seeds])
    return found


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


def _not_tuned(judged: Bools, tuned: Bools) -> Bools:
    """Return which problems (P,) are judged and tuned no method; BadInputError if there is none."""
    left = judged & ~tuned
    if not left.any():
        raise BadInputError(
            "no evaluated problem is left to judge beside those that tuned the methods",
            hint="name other problems: --tune-on problems.jsonl",
        )
    return left


def _left_out(judged: Bools) -> list[str]:
    missing = int((~judged).sum())
    return [f"{missing} of {len(judged)} problems are left out: some evaluation has no verdict"] if missing else []


def _used_to_tune(tuned: Tuned, number: int) -> list[str]:
    """Remark on evaluated problems that are among others which were named for tuning."""
    on = tuned.figures["on"]
    return [f"{number} evaluated problems are left out: they are in {on}, too"] if on and number else []


def _unequal_starts(methods: Sequence[Method], before: Sequence[Floats]) -> list[str]:
    starts = [rate.mean() for rate in before]
    if max(starts) - min(starts) < 1e-9:
        return []
    text = ", ".join(f"{m.name} at {start:.3f}" for m, start in zip(methods, starts, strict=True))
    return [f"the methods did not start from the same pass@1: {text}"]


def _unequal_costs(methods: Sequence[Method], budget: str) -> list[str]:
    """Remark on trainings that are not at equal cost; a budget in rounds or seconds promises no equal tokens."""
    tokens = [m.tokens for m in methods]
    if max(tokens) <= _UNEQUAL * max(1.0, min(tokens)):
        return []
    least, most = methods[int(np.argmin(tokens))].name, methods[int(np.argmax(tokens))].name
    how = f" under a budget of {budget}" if budget else ""
    return [f"not at equal cost{how}: {most} sampled {max(tokens):,.0f} tokens a training, {least} {min(tokens):,.0f}"]


def _figures(method: Method, before: Floats, after: Floats, problems: Problems) -> MethodFigures:
    trainings = method.trainings
    return {
        "method": method.name,
        "runs": [t.run for t in trainings],
        "seeds": [t.seed for t in trainings],
        "rounds": [t.rounds for t in trainings],
        "tokens": method.tokens,
        "seconds": method.seconds,
        "before": _share(problems, before),
        "after": _share(problems, after),
        "gain": mean_of(problems.units(after - before)).interval().as_dict(),
        "by_seed": [_of_seed(t, b, a) for t, b, a in zip(trainings, before, after, strict=True)],
        "truncated": training_share(trainings, TRUNCATED),
        "dead_groups": training_share(trainings, DEAD),
        "stages": _mean_costs(trainings),
        "curve": _curve(method, problems),
    }


def _of_seed(training: Training, before: Floats, after: Floats) -> SeedFigures:
    return {
        "seed": training.seed,
        "run": training.run,
        "rounds": training.rounds,
        "tokens": training.tokens,
        "seconds": round(training.seconds, 2),
        "before": float(before.mean()),
        "after": float(after.mean()),
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


def _curve(method: Method, problems: Problems) -> list[Point]:
    """Return pass@1 before training, after rounds that every seed was evaluated after, and at the end."""
    first = method.trainings[0]
    common = [r for r in first.evaluations if all(r in t.evaluations and r < t.rounds for t in method.trainings)]
    points: list[Point] = []
    for index in [*sorted(common), None]:
        rounds = [t.rounds if index is None else index for t in method.trainings]
        ends = list(zip(method.trainings, rounds, strict=True))
        rates = [pass_rates(t, r, problems.ids)[problems.compared] for t, r in ends]
        tokens = [t.tokens_by_round[r] for t, r in ends]
        if not np.isnan(rates).any():
            figure = _share(problems, np.stack(rates))
            points.append({"round": max(rounds), "tokens": float(np.mean(tokens)), "pass_at_1": figure})
    return points
