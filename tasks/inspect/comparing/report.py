"""Trainings of several methods side by side: gains, paired differences, wins by difficulty, cost by stage.

A method is a recipe with its settings; it has one training for each seed. All figures are pass@1 on the main suite, of
the last checkpoint: one that was chosen by its evaluation would look better than it is.

Problems that were solved by luck before look worse afterwards without any training, and those that failed by bad luck
look better. So the verdicts of the start are split at random: one half puts a problem into a band of difficulty, the
other half is the pass@1 that the band had before.

Pairs of methods are judged at the level of all pairs together. A difference is shown if 0 can be rejected, equivalence
if a difference of the margin or more can be (two one-sided tests, TOST); each by p values that are adjusted for the
number of pairs (Holm). A difference that is shown and lies within the margin is an equivalence: the margin says what
matters. Nothing is called equivalent at a margin below the smallest detectable difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.errors import BadInputError
from gradus.data.intervals import LEVEL, detectable, holm, mean_of, share_interval
from gradus.data.lake.store import Ref
from gradus.data.seeds import derive_seed
from gradus.tasks.config.score import MARGIN
from gradus.tasks.inspect.comparing.figures import (
    START,
    Comparison,
    Cost,
    Difference,
    Fields,
    Judged,
    MethodFigures,
    PlanNote,
    Verdict,
)
from gradus.tasks.inspect.comparing.planning import Tuned
from gradus.tasks.inspect.comparing.trainings import (
    TEMPLATE,
    Methods,
    Training,
    clusters_of,
    num_clusters,
    pass_rates,
    problem_ids,
    remarks_on,
    units,
    verdicts,
)
from gradus.tasks.runs.history import is_evaluation
from gradus.tasks.stages.context import read_report

BANDS = ("never solved", "less than half", "half or more", "always solved")
"""Difficulty by the pass rate of the starting policy: 0, below 0.5, below 1, 1."""
EVALUATION = "evaluation"
"""The name that all stages of evaluations are counted under."""
UNSPLIT = (
    "by difficulty: problems have one verdict of the start, which cannot be split; a band's start would be what put "
    "problems into it, and is left out"
)
_UNEQUAL = 1.1
"""Methods whose costs differ by more than this factor are remarked on."""


@dataclass(frozen=True)
class Terms:
    """Under what methods are compared."""

    margin: float = MARGIN
    cluster: str = ""
    """The column of problems that belong together; empty: `template`, if problems have it."""
    plan: PlanNote | None = None
    tuned: Tuned | None = None
    """The tuning of the methods; its problems are left out."""
    budget: str = ""
    settings: Sequence[Fields] = ()
    """Those that differ."""


def compare(methods: Methods, terms: Terms | None = None, remarks: Sequence[str] = ()) -> Comparison:
    """Compare methods on the first one's main suite; BadInputError for other problems, or none with verdicts."""
    terms = terms or Terms()
    first = next(iter(methods.values()))[0]
    ids = problem_ids(first)
    before = {name: np.stack([pass_rates(t, 0, ids) for t in each]) for name, each in methods.items()}
    after = {name: np.stack([pass_rates(t, t.rounds, ids) for t in each]) for name, each in methods.items()}
    judged, left_out = _judged([*before.values(), *after.values()], terms.tuned, first, ids)
    before, after = ({name: rate[:, judged] for name, rate in each.items()} for each in (before, after))
    cluster = clusters_of(first.store, first.evaluations[0], ids.filter(pa.array(judged)), terms.cluster)
    starts = {str(t.evaluations[0]): t for each in methods.values() for t in each}
    judgements = [verdicts(t, 0, ids) for t in starts.values()]
    start_n, start_k = (np.sum([pair[i] for pair in judgements], axis=0)[judged] for i in (0, 1))
    planned = terms.plan["detectable"] if terms.plan and terms.plan["measured"] else None
    differences = _differences(methods, after, cluster, terms.margin, planned)
    said = [*remarks, *left_out, *remarks_on(cluster, terms.cluster)]
    said += [*_unequal_starts(before), *_unequal_costs(methods, terms.budget)]
    said += [] if can_split(start_n) else [UNSPLIT]
    seeds = min(map(len, methods.values()))
    if seeds == 1:
        said.append("one seed: the intervals say how problems differ, not how another seed would")
    found: Comparison = {
        "budget": terms.budget,
        "seeds": seeds,
        "problems": int(judged.sum()),
        "margin": terms.margin,
        "clusters": None if cluster is None else {"column": terms.cluster or TEMPLATE, "number": num_clusters(cluster)},
        "plan": terms.plan,
        "start": "same" if len(starts) == 1 else "measured apart",
        "settings": list(terms.settings),
        "methods": [
            _figures(name, each, before[name], after[name], cluster, _curve(each, ids, judged, cluster))
            for name, each in methods.items()
        ],
        "gains": judge_pairs(
            [(name, START, units(after[name] - before[name], cluster)) for name in methods], terms.margin
        ),
        "differences": differences,
        "by_difficulty": by_difficulty(start_n, start_k, after),
        "remarks": [*said, *too_narrow(differences, terms.margin, planned)],
    }
    return {**found, "tuning": terms.tuned.figures} if terms.tuned else found


def _differences(
    methods: Methods, after: Mapping[str, Floats], cluster: Ints | None, margin: float, planned: float | None
) -> list[Difference]:
    """Judge each pair of methods by the seeds that all have, and say what both spent."""
    seeds = min(map(len, methods.values()))
    pairs = list(combinations(methods, 2))
    values = [units(after[name][:seeds] - after[than][:seeds], cluster) for than, name in pairs]
    found = judge_pairs([(name, than, each) for (than, name), each in zip(pairs, values, strict=True)], margin, planned)
    return [
        {
            **each,
            "sides": [{"method": side, **cost_of(methods[side])} for side in (name, than)],
            "shared_tokens": _shared_tokens(methods[name][:seeds], methods[than][:seeds]),
        }
        for each, (than, name) in zip(found, pairs, strict=True)
    ]


def cost_of(trainings: Sequence[Training]) -> Cost:
    """Return completion tokens and seconds of a training, means over seeds."""
    return {
        "tokens": float(np.mean([t.tokens for t in trainings])),
        "seconds": float(np.mean([t.seconds for t in trainings])),
    }


def by_difficulty(n: Ints, k: Ints, after: Mapping[str, Floats]) -> list[Fields]:
    """Return figures by the pass rate before training, and at how many problems a method alone is the best.

    `n` and `k` count the start's rollouts judged and right (P,), `after` has (S, P) rates by method. How many of a
    random half are right is hypergeometric.
    """
    banded, before = k / n, None
    if can_split(n):
        half = n // 2
        of_half = np.random.default_rng(derive_seed("compare", "difficulty")).hypergeometric(k, n - k, half)
        banded, before = of_half / half, (k - of_half) / (n - half)
    bands = np.select([banded <= 0, banded < 0.5, banded < 1], [0, 1, 2], 3)
    rate = np.stack([each.mean(axis=0) for each in after.values()])
    best = rate >= rate.max(axis=0) - 1e-12  # means over seeds differ by rounding
    alone = best & (best.sum(axis=0) == 1)
    return [
        {
            "band": BANDS[b],
            "problems": int((bands == b).sum()),
            "before": None if before is None else float(before[bands == b].mean()),
            "pass_at_1": {name: float(rate[i, bands == b].mean()) for i, name in enumerate(after)},
            "wins": {name: int(alone[i, bands == b].sum()) for i, name in enumerate(after)},
        }
        for b in np.unique(bands).tolist()
    ]


def can_split(n: Ints) -> bool:
    """Return whether each problem has two verdicts of the start."""
    return bool((n >= 2).all())


def _judged(rates: Sequence[Floats], tuned: Tuned | None, first: Training, ids: pa.Array) -> tuple[Bools, list[str]]:
    """Return the problems (P,) with every verdict that tuned nothing, and remarks; BadInputError if none is left."""
    judged, remarks = np.logical_not(np.isnan(np.concatenate(rates)).any(axis=0)), list[str]()
    if not judged.any():
        raise BadInputError(
            "no problem has a verdict in every evaluation", hint="evaluate with a reward that says what is correct"
        )
    if not judged.all():
        missing = int((~judged).sum())
        remarks.append(f"{missing} of {len(judged)} problems are left out: some evaluation has no verdict")
    if tuned:
        used, on = tuned.has(first, ids), tuned.figures["on"]
        if on and used.any():
            remarks.append(f"{int(used.sum())} evaluated problems are left out: they are in {on}, too")
        judged &= ~used
        if not judged.any():
            raise BadInputError(
                "no evaluated problem is left to judge beside those that tuned the methods",
                hint="name other problems: --tune-on problems.jsonl",
            )
    return judged, remarks


def _unequal_starts(before: Mapping[str, Floats]) -> list[str]:
    starts = {name: rate.mean() for name, rate in before.items()}
    if max(starts.values()) - min(starts.values()) < 1e-9:
        return []
    text = ", ".join(f"{name} at {start:.3f}" for name, start in starts.items())
    return [f"the methods did not start from the same pass@1: {text}"]


def _unequal_costs(methods: Methods, budget: str) -> list[str]:
    """Remark on trainings that are not at equal cost; a budget in rounds or seconds promises no equal tokens."""
    tokens = {name: cost_of(each)["tokens"] for name, each in methods.items()}
    least, most = min(tokens, key=tokens.__getitem__), max(tokens, key=tokens.__getitem__)
    if tokens[most] <= _UNEQUAL * max(1.0, tokens[least]):
        return []
    how = f" under a budget of {budget}" if budget else ""
    sampled = f"{most} sampled {tokens[most]:,.0f} tokens a training, {least} {tokens[least]:,.0f}"
    return [f"not at equal cost{how}: {sampled}"]


def _figures(
    name: str, trainings: Sequence[Training], before: Floats, after: Floats, cluster: Ints | None, curve: list[Fields]
) -> MethodFigures:
    return {
        "method": name,
        "runs": [t.run for t in trainings],
        "seeds": [t.seed for t in trainings],
        "rounds": [t.rounds for t in trainings],
        **cost_of(trainings),
        "before": share_interval(units(before, cluster)),
        "after": share_interval(units(after, cluster)),
        "gain": mean_of(units(after - before, cluster)).interval(),
        "by_seed": [
            {
                "seed": t.seed,
                "run": t.run,
                "rounds": t.rounds,
                "tokens": t.tokens,
                "seconds": round(t.seconds, 2),
                "before": float(b.mean()),
                "after": float(a.mean()),
            }
            for t, b, a in zip(trainings, before, after, strict=True)
        ],
        "truncated": _training_share(trainings, "rollout", "length/truncated_frac"),
        "dead_groups": _training_share(trainings, "score", "reward/frac_zero_std_groups"),
        "stages": _mean_costs(trainings),
        "curve": curve,
    }


def _mean_costs(trainings: Sequence[Training]) -> dict[str, Cost]:
    """Costs by stage in order of appearance, means over seeds; the stages of evaluations are one, EVALUATION."""
    found: dict[str, list[tuple[int, float]]] = {}
    for each in (each for t in trainings for each in t.stages):
        stage = EVALUATION if is_evaluation(each["purpose"]) else each["stage"]
        found.setdefault(stage, []).append((each["tokens"], each["seconds"]))
    sums = {stage: np.sum(costs, axis=0) / len(trainings) for stage, costs in found.items()}
    return {stage: {"tokens": float(each[0]), "seconds": round(float(each[1]), 2)} for stage, each in sums.items()}


def _training_share(trainings: Sequence[Training], stage: str, metric: str) -> float | None:
    """Return a metric of the rounds of trainings, weighted by rows; None if no stage reports it."""
    rounds = [(t.store, each) for t in trainings for each in t.learning if each["stage"] == stage and each["round"] > 0]
    reports = [read_report(store, Ref.parse(each["output"])) for store, each in rounds]
    values = [(report.get("metrics", {}).get(metric), report.get("summary", {}).get("rows", 0)) for report in reports]
    found = [(value, number) for value, number in values if value is not None]
    rows = sum(number for _, number in found)
    return sum(value * number for value, number in found) / rows if rows else None


def _shared_tokens(one: Sequence[Training], other: Sequence[Training]) -> float:
    """Return the share of the tokens of two methods that went into artifacts that trainings of one seed share."""
    shared = both = 0
    for mine, theirs in zip(one, other, strict=False):
        outputs = {each["output"] for each in mine.learning}
        shared += 2 * sum(each["tokens"] for each in theirs.learning if each["output"] in outputs)
        both += mine.tokens + theirs.tokens
    return shared / both if both else 0.0


def _curve(trainings: Sequence[Training], ids: pa.Array, judged: Bools, cluster: Ints | None) -> list[Fields]:
    """Return pass@1 before training, after rounds that every seed was evaluated after, and at the end."""
    common = [r for r in trainings[0].evaluations if all(r in t.evaluations and r < t.rounds for t in trainings)]
    points: list[Fields] = []
    for index in [*sorted(common), None]:
        ends = [(t, t.rounds if index is None else index) for t in trainings]
        rates = [pass_rates(t, r, ids)[judged] for t, r in ends]
        if not np.isnan(rates).any():
            tokens = float(np.mean([t.tokens_until(r) for t, r in ends]))
            rate = share_interval(units(np.stack(rates), cluster))
            points.append({"round": max(r for _, r in ends), "tokens": tokens, "pass_at_1": rate})
    return points


def judge_pairs(pairs: Sequence[tuple[str, str, Floats]], margin: float, planned: float | None = None) -> list[Judged]:
    """Judge pairs (method, than, (S, P) differences of pass rates).

    `planned` is the difference planned to detect; without it each pair's own decides what may be called equivalent.
    """
    if not pairs:
        return []
    means = [mean_of(values) for _, _, values in pairs]
    different = holm(np.array([mean.p_different() for mean in means])).tolist()
    equivalent = holm(np.array([mean.p_equivalent(margin) for mean in means])).tolist()
    found: list[Judged] = []
    for (method, than, values), mean, p, q in zip(pairs, means, different, equivalent, strict=True):
        least = detectable(mean.error, mean.freedom, LEVEL / len(pairs))
        verdict: Verdict = "undecided"
        if q <= LEVEL and margin >= (least if planned is None else planned):
            verdict = "equivalent"
        elif p <= LEVEL:
            verdict = "better" if mean.value > 0 else "worse"
        found.append(
            {
                "method": method,
                "than": than,
                "difference": mean.interval(),
                "by_seed": values.mean(axis=1).tolist(),
                "p_different": p,
                "p_equivalent": q,
                "detectable": least,
                "verdict": verdict,
            }
        )
    return found


def too_narrow(found: Sequence[Judged], margin: float, planned: float | None = None) -> list[str]:
    """Remark on a margin at which nothing can be called equivalent."""
    least = [planned] if planned is not None else [each["detectable"] for each in found]
    if not least or margin >= max(least):
        return []
    where = "the plan" if planned is not None else "these data" if margin < min(least) else "some pairs"
    text = f"the smallest detectable difference of {where} is {100 * max(least):.1f} points"
    return [f"{text}, above the margin of {100 * margin:g}: `equivalent` cannot be concluded there"]
