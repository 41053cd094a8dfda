"""The plan of a comparison: which difference its seeds, problems and samples can detect, from trainings that are there.

A difference of two methods varies over seeds, over problems, over both together, and by the samples of each problem.
Its variances are those of pairs of stored methods; if there is none, twice those of one method with several seeds.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints
from gradus.data.errors import UsageError
from gradus.data.intervals import LEVEL, Crossed, crossed, detectable, standard_error
from gradus.data.lake.manifest import json_digest
from gradus.data.lake.schema import PROBLEMS
from gradus.data.nearest import did_you_mean
from gradus.data.records import Row
from gradus.data.sources.reading import Refused, read_rows
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
    body = {key: value for key, value in plan.items() if key != "digest"}
    return json_digest(body)


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
    """Return the seeds that all methods have."""
    return set.intersection(*({t.seed for t in each} for each in sides))


def _components(ids: pa.Array, cluster: Ints | None, sides: Sequence[Sequence[Training]]) -> list[float]:
    """Return the variances of the difference of two methods, or twice those of one; an estimate below 0 is 0.

    One method is taken to differ over problems as a seed does.
    """
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
