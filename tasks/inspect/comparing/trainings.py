"""Trainings as a comparison reads them: evaluations on the main suite, their problems, costs of stages, learning curve.

A training has what its last command made or reused. Read from journals and the lake; nothing is computed. Problems may
belong together: those of one template, source or domain, by a column. A learning curve is the sigmoid of a pass rate
over compute (ScaleRL).
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints, bools, ints, one_array, positions, take_or_null
from gradus.data.errors import BadInputError, CorruptArtifactError, UsageError
from gradus.data.intervals import by_cluster
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs import history
from gradus.tasks.runs.run_settings import read_settings
from gradus.tasks.stages.context import read_report

TEMPLATE = "template"
"""The column that is taken unless another is named: problems written from one template are not independent."""
_FEW = 10
MIN_POINTS = 5
"""Points of a curve at least: the start, and more than the three numbers that are fitted."""
_EXPONENTS = np.geomspace(0.2, 10.0, 40)
_REACH = 10.0
"""A midpoint lies at most this factor beyond the compute of the points."""


class Spent(history.Attempt):
    """A stage of a training with what it cost; one that was reused as when it was computed."""

    tokens: int


@dataclass(frozen=True)
class Training:
    """One finished training: its seed, the evaluations of the main suite by round, its stages with their costs."""

    run: str
    seed: int
    store: Store
    evaluations: Mapping[int, Ref]
    stages: Sequence[Spent]

    @property
    def rounds(self) -> int:
        """The last round."""
        return max(self.evaluations)

    @property
    def learning(self) -> list[Spent]:
        """Its stages, those of evaluations left out."""
        return [each for each in self.stages if not history.is_evaluation(each["purpose"])]

    @property
    def tokens(self) -> int:
        """Completion tokens sampled, evaluations left out."""
        return self.tokens_until(self.rounds)

    def tokens_until(self, round_index: int) -> int:
        """Return the completion tokens sampled up to the end of a round, evaluations left out."""
        return sum(each["tokens"] for each in self.learning if each["round"] <= round_index)

    @property
    def seconds(self) -> float:
        """Seconds of stages, evaluations left out."""
        return sum(each["seconds"] for each in self.learning)


Methods = Mapping[str, Sequence[Training]]
"""The trainings of each method by its name, one a seed, in the order in which seeds are paired."""


def read_training(store: Store, folder: Path, computed: history.ComputedSeconds) -> Training:
    """Return a training of a run; UsageError if it is none, BadInputError without evaluation at both ends."""
    on_damage = computed.on_damage
    settings = read_settings(folder, on_damage)
    if "recipe" not in settings:
        raise UsageError(f"run {folder.name} is a single `{settings['verb']}`", hint="name trainings (`gradus runs`)")
    standing = history.brief(folder, on_damage)
    if standing["status"] != "finished":
        why = standing["error"] or f"it is {standing['status']}"
        raise BadInputError(
            f"run {folder.name} did not finish: {why}", hint=f"continue it: gradus train {shlex.quote(folder.name)}"
        )
    done = [row for row in history.attempts(folder, on_damage) if row["status"] in ("finished", "reused")]
    last = max((row["start"] for row in done), default=0)
    of_last = [row for row in done if row["start"] == last]
    stages = [spent for row in of_last for spent in _spent(store, folder.name, row, computed)]
    evaluations = {row["round"]: Ref.parse(row["output"]) for row in stages if history.is_main_evaluation(row)}
    if not {0, max((row["round"] for row in stages), default=0)} <= set(evaluations):
        raise BadInputError(
            f"run {folder.name} has no evaluation after its last round",
            hint=f"evaluate it: gradus train {shlex.quote(folder.name)}",
        )
    return Training(folder.name, settings.get("seed", 0), store, evaluations, stages)


def _spent(store: Store, run: str, row: history.Attempt, computed: history.ComputedSeconds) -> Iterator[Spent]:
    """Yield a stage with its tokens and seconds; nothing if a comparison reads its artifact and cannot."""
    ref, tokens, samples = Ref.parse(row["output"]), 0, row["stage"] == "rollout"
    try:
        if (samples or history.is_main_evaluation(row)) and store.whole(ref) is None:
            raise history.missing(str(ref), run, "train")
        if samples:
            tokens = history.sampled_tokens("rollout", read_report(store, ref).get("summary", {}))
        elif history.is_main_evaluation(row):
            store.verify(ref)
    except CorruptArtifactError as damage:
        computed.on_damage(history.of_run(damage, store.path(ref), run, "train"))
        return
    seconds = computed.of(row["output"]) if row["status"] == "reused" else row["seconds"]
    yield {**row, "tokens": tokens, "seconds": seconds}


def problem_ids(training: Training) -> pa.Array:
    """Return the problems of the main suite of a training, (P,)."""
    return one_array(training.store.read(training.evaluations[0], ["problem_id"]).column("problem_id"))


def problem_rows(store: Store, evaluation: Ref, problems: pa.Array, columns: Sequence[str]) -> pa.Table | None:
    """Return the rows of evaluated problems (P,) in the table that they come from; None if that is not in the lake."""
    ref = store.manifest(evaluation).parent("problems")
    if ref is None or store.find(ref) is None:
        return None
    table = store.read(ref, columns)
    at = positions(problems, table.column("problem_id"))
    return table.take(pa.array(at, mask=at < 0))


def pass_rates(training: Training, round_index: int, problems: pa.Array) -> Floats:
    """Return each problem's pass rate (P,) after a round, NaN without a verdict; BadInputError for others."""
    n, k = verdicts(training, round_index, problems)
    return np.divide(k, n, out=np.full(len(n), np.nan), where=n > 0)


def verdicts(training: Training, round_index: int, problems: pa.Array) -> tuple[Ints, Ints]:
    """Return each problem's rollouts judged after a round, and those right, (P,); BadInputError for others."""
    table = training.store.read(training.evaluations[round_index], ["problem_id", "n", "k"])
    at = positions(problems, table.column("problem_id"))
    absent = int((at < 0).sum())
    more = table.num_rows - (len(problems) - absent)
    if absent or more:
        raise BadInputError(
            f"run {training.run} was evaluated on other problems: {absent} of {len(problems)} are missing, "
            f"{more} are not among those of the first",
            hint="compare trainings with the same evaluate.problems",
        )
    n, k = (ints(take_or_null(table.column(name), at)) for name in ("n", "k"))
    return n, k


def recount(trainings: Sequence[Training]) -> int:
    """Count every evaluation's verdicts in its scores; return how many there are, BadInputError if one differs."""
    found = {str(ref): (t.store, ref) for t in trainings for ref in t.evaluations.values()}
    for store, evaluation in found.values():
        table = store.read(evaluation, ["problem_id", "n", "k"])
        counts = np.zeros((2, table.num_rows), dtype=np.int64)
        for text in store.manifest(evaluation).parents.get("scores", []):
            scores = store.read(Ref.parse(text), ["problem_id", "correct"]).drop_null()
            at = positions(scores.column("problem_id"), table.column("problem_id"))
            counts += [np.bincount(each, minlength=len(table)) for each in (at, at[bools(scores.column("correct"))])]
        if (counts != [ints(table.column(name)) for name in ("n", "k")]).any():
            raise BadInputError(
                f"{evaluation} does not count the verdicts of its scores",
                hint="evaluate again: gradus rerun RUN evaluate",
            )
    return len(found)


def units(values: Floats, cluster: Ints | None) -> Floats:
    """Return the values (S, U) of what is independent: clusters of problems, or problems if `cluster` is None."""
    return values if cluster is None else by_cluster(values, cluster)


def num_clusters(cluster: Ints) -> int:
    """Return the number of clusters 0..G-1."""
    return int(cluster.max()) + 1


def clusters_of(store: Store, evaluation: Ref, problems: pa.Array, column: str) -> Ints | None:
    """Return the cluster of each problem (P,), 0..G-1; None if problems have no column `template` and none is named.

    The column is one of the problems table or a key of their `extra`. A problem without a value is a cluster by
    itself. Raise BadInputError if a column that is named does not exist, or is the same for all problems.
    """
    values = _values(store, evaluation, problems, column or TEMPLATE)
    named = [f"{at} alone" if value is None else f" {value}" for at, value in enumerate(values)]
    if len(set(named)) > 1:
        return np.unique(named, return_inverse=True)[1].astype(np.int64)
    if column and values:
        raise BadInputError(
            f"--cluster {column}: it is the same for all problems", hint="leave the option out: nothing is clustered"
        )
    if column:
        raise BadInputError(
            f"--cluster {column}: the evaluated problems have no such column",
            hint="name a column of the problems, or a key of their `extra` (`gradus show`)",
        )
    return None


def remarks_on(cluster: Ints | None, column: str) -> list[str]:
    """Remark on what an interval over clusters rests on."""
    if cluster is None:
        return []
    num = num_clusters(cluster)
    text = f"intervals are over {num} clusters of problems ({column or TEMPLATE}), not over {len(cluster)} problems"
    return [f"{text}; so few clusters make them wide" if num < _FEW else text]


def _values(store: Store, evaluation: Ref, problems: pa.Array, column: str) -> list[str | None]:
    """Return a column of the evaluated problems as texts; empty if there is none."""
    rows = problem_rows(store, evaluation, problems, list(dict.fromkeys(("problem_id", column, "extra"))))
    if rows is None:
        return []
    if column in rows.column_names:
        values = rows.column(column).to_pylist()
    else:
        extras = [json.loads(text or "{}") for text in rows.column("extra").to_pylist()]
        values = [extra.get(column) if isinstance(extra, dict) else None for extra in extras]
    found = [None if value is None else str(value) for value in values]
    return found if any(value is not None for value in found) else []


@dataclass(frozen=True)
class Sigmoid:
    """R(C) = start + (asymptote - start) / (1 + (midpoint / C)^exponent)."""

    start: float
    """R_0, the rate at compute 0."""
    asymptote: float
    """A, the rate that is approached."""
    exponent: float
    """B, how fast."""
    midpoint: float
    """C_mid, the compute at which half of the gain is made."""
    rmse: float = 0.0
    """Root of the mean squared error of the points that were fitted."""

    def at(self, compute: Floats | float) -> Floats:
        """Return the rate at each compute, which is 0 or more."""
        share = _share(np.asarray(compute, np.float64), self.exponent, self.midpoint)
        return self.start + (self.asymptote - self.start) * share


def fit_sigmoid(compute: Floats, rate: Floats) -> Sigmoid:
    """Return the sigmoid of least squares through the rates (N,) in 0..1 at computes (N,), the first of which is 0.

    The Art of Scaling Reinforcement Learning Compute, arXiv 2510.13786, eq. 1; its fit, too, takes R_0 as measured.
    Exponent and midpoint are searched on a grid and refined; the asymptote is that of least squares in R_0 .. 1 for
    each of them. Raise ValueError for fewer than MIN_POINTS points, or if the first is not the only one at compute 0.
    """
    import scipy.optimize  # noqa: PLC0415 - slow, and for this alone

    compute, rate = np.asarray(compute, np.float64), np.asarray(rate, np.float64)
    if len(compute) < MIN_POINTS:
        raise ValueError(f"a sigmoid needs {MIN_POINTS} points, not {len(compute)}")
    if compute[0] != 0 or not (compute[1:] > 0).all():
        raise ValueError("the first point, and no other, is at compute 0")
    start, gain = float(rate[0]), rate[1:] - rate[0]
    places = np.log(compute[1:])

    def amplitude(shares: Floats) -> Floats:
        return np.clip((shares * gain).sum(-1) / (shares**2).sum(-1), 0.0, 1.0 - start)

    def errors(found: Floats) -> Floats:
        shares = _share(compute[1:], np.exp(found[0]), np.exp(found[1]))
        return amplitude(shares) * shares - gain

    bounds = (
        [np.log(_EXPONENTS[0]), places.min() - np.log(_REACH)],
        [np.log(_EXPONENTS[-1]), places.max() + np.log(_REACH)],
    )
    grid = np.stack(np.meshgrid(np.log(_EXPONENTS), np.linspace(bounds[0][1], bounds[1][1], 60), indexing="ij"), -1)
    losses = [float((errors(point) ** 2).sum()) for point in grid.reshape(-1, 2)]
    first = np.clip(grid.reshape(-1, 2)[int(np.argmin(losses))], np.add(bounds[0], 1e-9), np.subtract(bounds[1], 1e-9))
    best = scipy.optimize.least_squares(errors, first, bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12).x
    exponent, midpoint = float(np.exp(best[0])), float(np.exp(best[1]))
    top = start + float(amplitude(_share(compute[1:], exponent, midpoint)))
    return Sigmoid(start, top, exponent, midpoint, float(np.sqrt((errors(best) ** 2).mean())))


def _share(compute: Floats, exponent: float, midpoint: float) -> Floats:
    """Return the share of the gain that is made at each compute: 1 / (1 + (midpoint / C)^exponent), 0 at C = 0."""
    ratio = np.divide(midpoint, compute, out=np.full_like(compute, np.inf), where=compute > 0)
    return 1 / (1 + ratio**exponent)
