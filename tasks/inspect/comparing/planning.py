"""Before methods are compared: the difference that seeds, problems and samples can detect, and tuning.

A difference of two methods varies over seeds, over problems, over both together, and by the samples of each problem.
Its variances are those of pairs of stored methods; if there is none, twice those of one method with several seeds.

Tuning chooses which of the values tried is each method's best, on problems that the comparison then leaves out, of
their own or a part of the evaluated ones. All figures are pass@1 of the last checkpoint.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.errors import BadInputError, UsageError
from gradus.data.intervals import LEVEL, Crossed, crossed, detectable, standard_error
from gradus.data.lake.manifest import json_digest
from gradus.data.lake.schema import PROBLEMS
from gradus.data.nearest import did_you_mean
from gradus.data.records import Row
from gradus.data.sources.reading import Refused, read_rows
from gradus.tasks.inspect.comparing.figures import Fields, Tuning
from gradus.tasks.inspect.comparing.trainings import (
    Methods,
    Training,
    clusters_of,
    num_clusters,
    pass_rates,
    problem_ids,
    problem_rows,
    units,
    verdicts,
)
from gradus.tasks.inspect.remarks import IDENTITY, recognised
from gradus.tasks.preflight.checks import bundled

MIN_PROBLEMS = 500
"""Fewer problems of evaluation are remarked on."""
ASSUMED_SEEDS = 0.03
"""The standard deviation of pass@1 over seeds where nothing is stored."""
_OTHER_SEEDS = (3, 5, 10)
_FRAC, _MIN = 0.2, 50


class Cost(TypedDict):
    """Trainings that are not there yet, and what they cost; None if no training like them is stored."""

    trainings: int
    tokens: float | None
    seconds: float | None


class Plan(TypedDict):
    """A comparison before it begins. `measured` is False if deviations are assumed; `digest` is of all other fields.

    `deviations` are standard deviations of a difference in pass@1: over seeds, problems, both (rest), of one sample.
    `tuning` is what a tuning still to come costs; `cost`, that of the comparison, then counts all its trainings.
    """

    methods: list[str]
    seeds: list[int]
    budget: str
    problems: int
    samples: int
    margin: float
    cluster: str
    level: float
    power: float
    pairs: int
    deviations: dict[str, float]
    measured: bool
    runs: list[str]
    detectable: float
    others: list[Fields]
    """seeds, problems and samples of each, and the difference that they detect."""
    cost: Cost
    before_first_token: bool
    remarks: list[str]
    digest: str
    tuning: NotRequired[Cost]


@dataclass(frozen=True)
class Variances:
    """Variances of a difference in pass@1: components of seeds, problems and both, and that of one sample."""

    seeds: float
    problems: float
    rest: float
    sample: float

    def detectable(self, size: tuple[int, int, int], pairs: int) -> float:
        """Return the smallest difference that (seeds, problems, samples) detect, at the level of all pairs."""
        seeds, problems, samples = size
        rest = self.rest + self.sample / samples
        several = seeds > 1
        expected = Crossed(
            seeds=seeds,
            problems=problems,
            mean=np.zeros(()),
            ms_seeds=np.array(several * (rest + problems * self.seeds)),
            ms_problems=np.array(rest + seeds * self.problems),
            ms_rest=np.array(several * rest),
        )
        return detectable(standard_error(expected), float(expected.freedom), LEVEL / max(pairs, 1))

    def deviations(self) -> dict[str, float]:
        """Return the square roots by name."""
        return {name: variance**0.5 for name, variance in vars(self).items()}


@dataclass(frozen=True)
class Known:
    """Evidence of stored trainings on a comparison to come; `units` are clusters of problems, or problems."""

    variances: Variances
    measured: bool
    runs: Sequence[str]
    remarks: Sequence[str]
    problems: int | None = None
    units: int | None = None


def known_of(methods: Methods, cluster: str = "") -> Known:
    """Return the variances of a difference, from stored methods that were evaluated on the same problems."""
    if not methods:
        return _assumed(None, None)
    first = next(iter(methods.values()))[0]
    ids = problem_ids(first)
    groups = clusters_of(first.store, first.evaluations[0], ids, cluster)
    num_units = len(ids) if groups is None else num_clusters(groups)
    pairs = [sides for sides in combinations(methods.values(), 2) if len(_common(sides)) > 1]
    alone = [(trainings,) for trainings in methods.values() if len(trainings) > 1]
    chosen: list[tuple[Sequence[Training], ...]] = [*(pairs or alone)]
    if not chosen:
        return _assumed(len(ids), num_units)
    mean = np.mean([_components(ids, groups, sides) for sides in chosen], axis=0)
    runs = list(dict.fromkeys(t.run for sides in chosen for each in sides for t in each))
    remark = "no two stored methods have two seeds in common: they are taken to differ over problems as seeds do"
    return Known(Variances(*mean.tolist()), True, runs, [] if pairs else [remark], len(ids), num_units)


def _assumed(problems: int | None, units: int | None) -> Known:
    remark = (
        f"no stored method with two seeds was evaluated in this way: {100 * ASSUMED_SEEDS:g} points over seeds and "
        "pass rates of a half are assumed; two seeds of one method measure them"
    )
    variances = Variances(seeds=2 * ASSUMED_SEEDS**2, problems=0.0, rest=0.0, sample=0.5)
    return Known(variances, False, [], [remark], problems, units)


def sealed(plan: Mapping[str, object]) -> str:
    """Return the digest of a plan, its field `digest` left out."""
    return json_digest({key: value for key, value in plan.items() if key != "digest"})


def others(known: Known, size: tuple[int, int, int], pairs: int) -> list[Fields]:
    """Return what other numbers of seeds, problems and samples would detect."""
    seeds, problems, samples = size
    sizes = [(s, problems, samples) for s in _OTHER_SEEDS if s != seeds]
    sizes += [(seeds, 2 * problems, samples)]
    if known.variances.sample:  # 0 if problems had one sample, whose chance cannot be separated from that of seeds
        sizes.append((seeds, problems, 2 * samples))
    return [
        {"seeds": s, "problems": p, "samples": k, "detectable": known.variances.detectable((s, p, k), pairs)}
        for s, p, k in sizes
    ]


def count_problems(text: str) -> int | None:
    """Return the rows of a file of problems, bundled or the user's; None if that is not known before `ingest`."""
    rows = _rows_of(text)
    return None if rows is None else sum(1 for _ in rows)


def refuse_unknown_column(text: str, column: str) -> None:
    """Raise UsageError if a file of problems, bundled or the user's, has no such column; other sources pass."""
    there: set[str] = set()
    for row in _rows_of(text) or () if column else ():
        extra = row.get("extra")
        there |= {*row, *(json.loads(extra) if isinstance(extra, str) else {})}
    if there and column not in there | {each.name for each in PROBLEMS.columns}:
        raise UsageError(
            f"--cluster {column}: the problems of {text} have no such column",
            hint=did_you_mean(column, sorted(there), f"its columns are {', '.join(sorted(there))}"),
        )


def _rows_of(text: str) -> Iterator[Row] | None:
    path = bundled(text) or Path(text)
    if not path.is_file() or path.suffix not in (".parquet", ".jsonl"):
        return None
    return (located.row for located in read_rows(path, Refused()))


def plan_remarks(problems: int, least: float, margin: float, *, measured: bool) -> list[str]:
    """Remark on few problems, and on a margin that cannot be shown."""
    texts: list[str] = []
    if problems < MIN_PROBLEMS:
        texts.append(
            f"{problems} problems of evaluation are fewer than {MIN_PROBLEMS}: the smallest detectable difference is "
            f"{100 * least:.1f} points; take all problems that there are"
        )
    if margin < least:
        then = "will not be concluded" if measured else "needs smaller deviations than assumed"
        texts.append(
            f"a margin of {100 * margin:g} points is below the smallest detectable difference of {100 * least:.1f}: "
            f"`equivalent` {then}"
        )
    return texts


def _common(sides: Sequence[Sequence[Training]]) -> set[int]:
    return set.intersection(*({t.seed for t in each} for each in sides))


def _components(ids: pa.Array, cluster: Ints | None, sides: Sequence[Sequence[Training]]) -> list[float]:
    """Return variances of two methods' difference, or twice one's, taken to differ over problems as a seed does."""
    found = [_rates(ids, cluster, each, _common(sides)) for each in sides]
    rates, sample, samples = [each[0] for each in found], sum(each[1] for each in found), found[0][2]
    squares = crossed(rates[0] - rates[1] if len(rates) > 1 else rates[0])
    seeds = max(0.0, float(squares.ms_seeds - squares.ms_rest) / squares.problems)
    problems = max(0.0, float(squares.ms_problems - squares.ms_rest) / squares.seeds)
    rest = max(0.0, float(squares.ms_rest) - sample / samples)
    return [seeds, problems, rest, sample] if len(rates) > 1 else [2 * seeds, 2 * rest, 2 * rest, 2 * sample]


def _rates(
    ids: pa.Array, cluster: Ints | None, trainings: Sequence[Training], seeds: Collection[int]
) -> tuple[Floats, float, float]:
    """Return pass rates (S, U) after training, the variance of one sample of a unit, and samples a problem."""
    chosen = sorted((t for t in trainings if t.seed in seeds), key=lambda t: t.seed)
    rates = units(np.nan_to_num(np.stack([pass_rates(t, t.rounds, ids) for t in chosen])), cluster)
    n, k = verdicts(chosen[0], chosen[0].rounds, ids)
    several = n > 1
    if not several.any():
        return rates, 0.0, 1.0
    sample = (k[several] * (n - k)[several] / (n * (n - 1.0))[several]).mean()
    return rates, float(sample) * rates.shape[1] / len(ids), float(n[several].mean())


class Attempted(TypedDict):
    """Values tried of a method, and the names of their trainings, one a seed."""

    values: dict[str, str]
    runs: list[str]


class TuningRecord(TypedDict):
    """Record of a comparison's tuning, from which the choice is computed again."""

    on: str
    """Name of the problems; empty: a part of the evaluated ones."""
    methods: dict[str, list[Attempted]]


@dataclass(frozen=True)
class Tuned:
    """The result of tuning, and its problems, which a comparison leaves out."""

    figures: Tuning
    problems: pa.Table

    def has(self, training: Training, ids: pa.Array) -> Bools:
        """Return which evaluated problems (P,) of a training tuned methods, by text or by id."""
        by_text, by_id = recognised(self.problems, _evaluated_problems(training, ids))
        return by_text | by_id


def num_held_out(problems: int) -> int:
    """Return how many evaluated problems are held out for tuning: a fifth, at least 50, at most half of them."""
    return min(max(math.ceil(_FRAC * problems), _MIN), problems // 2)


def held_out(ids: Sequence[str], cluster: Ints | None = None) -> Bools:
    """Return which problems (P,) are held out for tuning, by the digests of their ids; clusters stay whole."""
    units = np.arange(len(ids)) if cluster is None else cluster
    first: dict[int, str] = {}
    for unit, name in sorted(zip(units.tolist(), ids, strict=True)):
        first.setdefault(unit, name)
    sizes = np.bincount(units)
    wanted, most, number = num_held_out(len(ids)), len(ids) // 2, 0
    taken: list[int] = []
    for unit in sorted(first, key=lambda each: hashlib.sha256(f"tuning {first[each]}".encode()).digest()):
        if number < wanted and number + sizes[unit] <= most:
            taken.append(unit)
            number += int(sizes[unit])
    return np.isin(units, taken)


def tune(record: TuningRecord, trainings: Sequence[Training], failed: Mapping[str, str], cluster: str) -> Tuned:
    """Choose the values of each method with the highest pass@1, the first as typed of equals.

    `failed` has the reasons of values that have no trainings, by the name of their first run. A part of the evaluated
    problems has whole clusters; BadInputError if it is too small.
    """
    first, on = trainings[0], record["on"]
    ids = problem_ids(first)
    part = np.ones(len(ids), dtype=bool)
    if not on:
        part = held_out(ids.to_pylist(), clusters_of(first.store, first.evaluations[0], ids, cluster))
    rates = {t.run: pass_rates(t, t.rounds, ids) for t in trainings}
    judged = part & np.logical_not(np.isnan(np.stack(list(rates.values()))).any(axis=0))
    if not judged.any():
        raise BadInputError(
            f"none of {len(ids)} evaluated problems can tune: they are too few, or have no verdict in every evaluation",
            hint="name other problems: --tune-on problems.jsonl",
        )
    found = [_tuned(name, attempts, failed, rates, judged) for name, attempts in record["methods"].items()]
    stages = {each["output"]: each for t in trainings for each in t.learning}
    figures: Tuning = {
        "on": on,
        "problems": int(judged.sum()),
        "seeds": sorted({t.seed for t in trainings}),
        "methods": found,
        "cost": {
            "trainings": len(trainings),
            "tokens": sum(each["tokens"] for each in stages.values()),
            "seconds": round(sum(each["seconds"] for each in stages.values()), 2),
        },
        "remarks": [*_remarks(found), *edge_remark(found)],
    }
    return Tuned(figures, _evaluated_problems(first, ids).filter(pa.array(part)))


def _tuned(
    name: str, attempts: Sequence[Attempted], failed: Mapping[str, str], rates: Mapping[str, Floats], judged: Bools
) -> Fields:
    tried = list[Fields]()
    for each in attempts:
        if reason := failed.get(each["runs"][0]):
            tried.append({**each, "pass_at_1": None, "failed": reason})
        else:
            rate = np.mean([rates[run][judged].mean() for run in each["runs"]])
            tried.append({**each, "pass_at_1": float(rate)})
    best = best_of([each["pass_at_1"] for each in tried])
    return {"method": name, "tried": tried, "chosen": None if best is None else tried[best]["values"]}


def best_of(rates: Sequence[float | None]) -> int | None:
    """Return the place of the highest rate, the first of equals; None if there is none."""
    known = [rate for rate in rates if rate is not None]
    return rates.index(max(known)) if known else None


def _remarks(methods: Sequence[Fields]) -> list[str]:
    rates = {each["method"]: [tried["pass_at_1"] for tried in each["tried"]] for each in methods}
    num_failed = sum(rate is None for found in rates.values() for rate in found)
    tied = [
        method
        for method, found in rates.items()
        if (best := best_of(found)) is not None and found.count(found[best]) > 1
    ]
    return [
        *([f"{num_failed} values are left out, with what they cost: a training of each failed"] if num_failed else []),
        *([f"several values are equally good, and the first of them is taken: {', '.join(tied)}"] if tied else []),
    ]


def edge_remark(methods: Sequence[Fields]) -> list[str]:
    """Remark on chosen numbers that are the smallest or the largest tried: a better one may lie beyond."""
    texts = [
        f"{each['method']} at {key}={value}, the {end} tried"
        for each in methods
        for key, value in (each["chosen"] or {}).items()
        if (end := _end(value, [tried["values"][key] for tried in each["tried"]]))
    ]
    return [f"chosen at the edge of what was tried, beyond which may be better: {'; '.join(texts)}"] if texts else []


def _end(value: str, tried: Sequence[str]) -> str:
    """Return which end of the numbers tried a value is at; empty for one between, or what is not a number."""
    try:
        numbers = sorted({float(each) for each in tried})
    except ValueError:
        return ""
    if len(numbers) < 2:
        return ""
    return {numbers[0]: "smallest", numbers[-1]: "largest"}.get(float(value), "")


def _evaluated_problems(training: Training, ids: pa.Array) -> pa.Table:
    """Return ids and texts of evaluated problems; texts are null if the problems are not in the lake."""
    found = problem_rows(training.store, training.evaluations[0], ids, IDENTITY)
    unknown = {name: pa.nulls(len(ids), pa.string()) for name in IDENTITY}
    return pa.table({**unknown, "problem_id": ids}) if found is None else found
