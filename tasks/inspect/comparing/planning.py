"""The plan of a comparison: which difference its seeds, problems and samples can detect, from trainings that are there.

A difference of two methods varies over seeds, over problems, over both together, and by the samples of each problem.
Its variances are those of pairs of stored methods; if there is none, twice those of one method with several seeds.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints
from gradus.data.errors import UsageError
from gradus.data.intervals import LEVEL, Crossed, crossed, detectable, standard_error
from gradus.data.lake.schema import PROBLEMS
from gradus.data.nearest import did_you_mean
from gradus.data.records import Row
from gradus.data.sources.tabular import Refused, read_rows
from gradus.tasks.inspect.comparing.clusters import clusters_of, num_clusters, units
from gradus.tasks.inspect.comparing.figures import Fields
from gradus.tasks.inspect.comparing.report import Methods
from gradus.tasks.inspect.comparing.trainings import Training, pass_rates, problem_ids, verdicts
from gradus.tasks.preflight.checks import bundled

MIN_PROBLEMS = 500
"""Fewer problems of evaluation are remarked on."""
ASSUMED_SEEDS = 0.03
"""The standard deviation of pass@1 over seeds where nothing is stored."""
_OTHER_SEEDS = (3, 5, 10)


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
    pairs = [pair for pair in combinations(methods, 2) if len(_common(*(methods[name] for name in pair))) > 1]
    several = [name for name, trainings in methods.items() if len(trainings) > 1]
    if pairs:
        used = dict.fromkeys(name for pair in pairs for name in pair)
        found = [_of_pair(ids, groups, methods[one], methods[other]) for one, other in pairs]
        remarks = list[str]()
    elif several:
        used, found = several, [_of_seeds(ids, groups, methods[name]) for name in several]
        remarks = ["no two stored methods have two seeds in common: they are taken to differ over problems as seeds do"]
    else:
        return _assumed(len(ids), num_units)
    runs = [t.run for name in used for t in methods[name]]
    mean = Variances(*np.mean([list(vars(each).values()) for each in found], axis=0).tolist())
    return Known(mean, True, runs, remarks, len(ids), num_units)


def _assumed(problems: int | None, units: int | None) -> Known:
    remark = (
        f"no stored method with two seeds was evaluated in this way: {100 * ASSUMED_SEEDS:g} points over seeds and "
        "pass rates of a half are assumed; two seeds of one method measure them"
    )
    variances = Variances(seeds=2 * ASSUMED_SEEDS**2, problems=0.0, rest=0.0, sample=0.5)
    return Known(variances, False, [], [remark], problems, units)


def sealed(plan: Mapping[str, object]) -> str:
    """Return the digest of a plan, its field `digest` left out."""
    body = {key: value for key, value in plan.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


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


def _common(one: Sequence[Training], other: Sequence[Training]) -> list[int]:
    theirs = {t.seed for t in other}
    return [t.seed for t in one if t.seed in theirs]


def _of_pair(ids: pa.Array, cluster: Ints | None, one: Sequence[Training], other: Sequence[Training]) -> Variances:
    """Return the variances of the difference of two methods with common seeds."""
    seeds = _common(one, other)
    (mine, sample, samples), (theirs, other_sample, _) = (_rates(ids, cluster, each, seeds) for each in (one, other))
    return _components(crossed(mine - theirs), sample + other_sample, samples)


def _of_seeds(ids: pa.Array, cluster: Ints | None, trainings: Sequence[Training]) -> Variances:
    """Return twice the components of one method; a method is taken to differ over problems as a seed does."""
    rates, sample, samples = _rates(ids, cluster, trainings, _common(trainings, trainings))
    found = _components(crossed(rates), sample, samples)
    return Variances(2 * found.seeds, 2 * found.rest, 2 * found.rest, 2 * found.sample)


def _rates(
    ids: pa.Array, cluster: Ints | None, trainings: Sequence[Training], seeds: Sequence[int]
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


def _components(found: Crossed, sample: float, samples: float) -> Variances:
    """Return variance components; one that is estimated below 0 is 0."""
    return Variances(
        seeds=max(0.0, float(found.ms_seeds - found.ms_rest) / found.problems),
        problems=max(0.0, float(found.ms_problems - found.ms_rest) / found.seeds),
        rest=max(0.0, float(found.ms_rest) - sample / samples),
        sample=sample,
    )
