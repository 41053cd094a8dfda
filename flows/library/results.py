"""Results of library calls: artifacts and runs, whose rows are Arrow tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa

from gradus.data.errors import UsageError
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.flows.console.answers import Curve, TrainAnswer
from gradus.flows.console.output import aside
from gradus.flows.library.calling import call
from gradus.flows.parameters import Input, named
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import Attempt, attempts, run_folder
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.listing import RunStory, list_runs, read_run
from gradus.tasks.runs.records import Evaluation
from gradus.tasks.stages.context import read_report

if TYPE_CHECKING:
    from gradus.tasks.inspect.comparing.trainings import Sigmoid
    from gradus.tasks.inspect.reasons import Explained

_NAMES = {"champion": "best", "newest": "newest"}
"""Names of checkpoints in a run's files, and their names here."""
_ROUNDS = """
select round, purpose, count(distinct (rollouts_artifact, problem_id, group_id)) as groups, count(*) as rollouts,
    avg(correct::int) as correct, avg(reward) as reward, count(*) filter (hint_level > 0) as hinted,
    avg(completion_tokens) as tokens
from samples group by round, purpose order by round, purpose
"""
_SPENT = """
select round, sum(completion_tokens) as tokens
from samples where round > 0 and not starts_with(purpose, 'eval') group by round order by round
"""
_EVALUATIONS = pa.schema(
    [
        *(("round", pa.int64()), ("suite", pa.string()), ("problems", pa.int64()), ("rollouts", pa.int64())),
        *(("judged", pa.int64()), ("pass_at_1", pa.float64()), ("low", pa.float64()), ("high", pa.float64())),
        *(("gain", pa.float64()), ("artifact", pa.string())),
    ]
)
_RUNS = pa.schema(
    [
        *(("run", pa.string()), ("verb", pa.string()), ("status", pa.string()), ("started", pa.timestamp("ms"))),
        *(("seconds", pa.float64()), ("stages", pa.int64()), ("reused", pa.int64()), ("gain", pa.float64())),
        *(("bytes", pa.int64()), ("error", pa.string())),
    ]
)


class Artifact(str):
    """An artifact by its name, `rollouts/0f3c...`, which any call takes as an input; with what its stage counted."""

    summary: Mapping[str, object]
    """The figures that the command line prints: counts of the stage, whether it was reused, seconds."""
    path: Path
    """Its folder: Parquet files, or the model folder of a checkpoint."""
    __slots__ = ("_lake", "path", "summary")

    def __new__(cls, name: str, lake: Path, summary: Mapping[str, object]) -> "Artifact":
        """Name an artifact of a lake."""
        made = super().__new__(cls, name)
        made._lake, made.path, made.summary = lake, lake / name, summary
        return made

    @call
    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return its rows, whose bytes are verified; `columns` alone if they are named."""
        ref = Ref.parse(self)
        if ref.table == CHECKPOINTS:
            raise UsageError(f"{self} is a model, and has no rows", hint=f"its files are in {self.path}")
        return Store(self._lake).read(ref, columns)


@dataclass(frozen=True)
class Run:
    """A run of this home: what it sampled, measured and learnt, as Arrow tables."""

    name: str
    home: Home = field(repr=False)
    result: TrainAnswer | None = field(default=None, repr=False, compare=False)
    """The result of the training that returned this; None for a run that was opened by its name."""

    @call
    def summary(self) -> RunStory:
        """Return its status, gain, seconds, bytes, settings, and every stage attempt."""
        return read_run(self.home.runs, self.name, self.home.lake)

    @call
    def samples(self, where: str = "true") -> pa.Table:
        """Return a row for each rollout that the run used and that meets a condition in SQL (docs/sql.md)."""
        order = "order by round, purpose, problem_id, group_id, sample"
        return _asked(self.home, f"select * from samples where ({where}\n) {order}", self.name)  # noqa: S608 - only read

    @call
    def rounds(self) -> pa.Table:
        """Return a row for each round and purpose: groups, rollouts, shares of correct and of hinted ones, means."""
        return _asked(self.home, _ROUNDS, self.name)

    @call
    def evaluations(self) -> pa.Table:
        """Return a row for each evaluation: pass@1 of a suite after a round, with its interval; round 0 is before."""
        rows = [_evaluation(self.home, row) for row in self._last if row["stage"] == "evaluate"]
        return pa.Table.from_pylist(rows, schema=_EVALUATIONS).sort_by([("round", "ascending"), ("suite", "ascending")])

    @call
    def scaling(self, suite: str = "") -> "Sigmoid":
        """Return the sigmoid of pass@1 over the completion tokens sampled for training (ScaleRL, arXiv 2510.13786).

        `.asymptote` is what the run approaches, `.at(tokens)` the rate at a compute. A suite is named if there are
        several. Evaluations before the first round and after four rounds at least are needed.
        """
        return _fitted(*_points(self, suite)[2:])

    @call
    def artifact(self, stage: str, *, round: int = 0, purpose: str = "train") -> Artifact:
        """Return what the run has of a stage: in a round, for a purpose (train, eval, profile, escalate1 ...)."""
        made = {(row["stage"], row["round"], row["purpose"]): row["output"] for row in self._last}
        if (stage, round, purpose) not in made:
            there = ", ".join(f"round={at}, purpose={why!r}" for name, at, why in made if name == stage)
            hint = (
                f"it has {there}" if there else f"its stages are {', '.join(dict.fromkeys(name for name, *_ in made))}"
            )
            what = f"no {stage} of round {round}, purpose {purpose!r}"
            raise UsageError(f"run {self.name} has {what}", hint=hint)
        return Artifact(made[stage, round, purpose], self.home.lake, {})

    @call
    def checkpoint(self, which: Literal["best", "newest"] = "best") -> Artifact:
        """Return the checkpoint that is the best by evaluation, or the newest."""
        events = [event for event in read_events(self._folder) if event["event"] == "model_alias"]
        named = [event["ref"] for event in events if _NAMES[event["alias"]] == which]
        if not named:
            raise UsageError(f"run {self.name} has no {which} checkpoint", hint="a finished training has one")
        return Artifact(named[-1], self.home.lake, {})

    @call
    def why(self, stage: str, *, round: int | None = None) -> "list[Explained]":
        """Return why a stage was computed, or reused, a row an attempt: what differed from the nearest call before."""
        from gradus.flows.loop.reruns import chosen_calls  # recipes, which results alone need not wait for
        from gradus.tasks.inspect.reasons import explain
        from gradus.tasks.runs.history import precedents

        chosen = chosen_calls(self._folder, stage, round)
        return explain(Store(self.home.lake), precedents(self.home.runs), self._folder, lambda key: key in chosen)

    @call
    def report(self, out: Input = "report.html", *, pictures: Input | None = None) -> list[Path]:
        """Write what the run did as one HTML page, its pictures also as PNG into a folder; return the files."""
        from gradus.tasks.inspect.report.writing import write_report  # draws

        folder = None if pictures is None else Path(pictures)
        return write_report(self.home, self.name, Path(out).absolute(), aside, pictures=folder)

    @property
    def _folder(self) -> Path:
        return run_folder(self.home.runs, self.name)

    @property
    def _last(self) -> list[Attempt]:
        """Return the latest artifact, finished or reused, of each stage, round and purpose of the run."""
        done = [row for row in attempts(self._folder) if row["status"] in ("finished", "reused")]
        return list({(row["stage"], row["round"], row["purpose"]): row for row in done}.values())


@call
def run(name: str) -> Run:
    """Return a run by its name, or by a beginning of it that no other has."""
    home = Home.from_environment()
    return Run(run_folder(home.runs, name).name, home)


@call
def runs() -> pa.Table:
    """Return a row for each run, newest first: status, date, seconds, gain in pass@1, bytes of its artifacts."""
    home = Home.from_environment()
    listed = list_runs(home.runs, home.lake)["runs"]
    began = (None if row["started"] is None else int(1000 * row["started"]) for row in listed)
    rows = [{**row, "started": started} for row, started in zip(listed, began, strict=True)]
    return pa.Table.from_pylist(rows, schema=_RUNS)


@call
def sql(query: str, run: Run | str | None = None) -> pa.Table:
    """Return what a SELECT finds in the lake, or in what one run made and read; docs/sql.md lists the views."""
    return _asked(Home.from_environment(), query, None if run is None else named(run))


def curve(name: str, suite: str = "") -> Curve:
    """Return the learning curve of a run, its points and the sigmoid through them (`Run.scaling`)."""
    found = run(name)
    chosen, rounds, tokens, rates = _points(found, suite)
    fit = _fitted(tokens, rates)
    fitted = [float(fit.at(float(each))) for each in tokens]
    rows = zip(rounds, tokens, rates, fitted, strict=True)
    return {
        "run": found.name,
        "suite": chosen,
        "start": fit.start,
        "asymptote": fit.asymptote,
        "exponent": fit.exponent,
        "midpoint_tokens": fit.midpoint,
        "rmse": fit.rmse,
        "points": [{"round": at, "tokens": num, "pass_at_1": rate, "fitted": y} for at, num, rate, y in rows],
    }


def _points(run: Run, suite: str) -> "tuple[str, list[int], list[int], list[float]]":
    """Return a suite, and rounds, tokens sampled for training up to each, and pass@1; UsageError if too few."""
    from gradus.tasks.inspect.comparing.trainings import MIN_POINTS  # SciPy is slow to import

    rows = [row for row in run.evaluations().to_pylist() if row["pass_at_1"] is not None]
    suites = dict.fromkeys(row["suite"] for row in rows)
    if (suite and suite not in suites) or (not suite and len(suites) > 1):
        what = f"has the suites {', '.join(suites)}" if suites else "has no evaluation"
        hint = "name one: --suite NAME; in Python run.scaling(suite)" if suites else "train it with an evaluation"
        raise UsageError(f"run {run.name} {what}", hint=hint)
    chosen = suite or next(iter(suites), "")
    rows = [row for row in rows if row["suite"] == chosen]
    if len(rows) < MIN_POINTS or rows[0]["round"]:
        counted = f"{len(rows)} evaluations, the first of round {rows[0]['round']}" if rows else "no evaluation"
        why = f"a curve needs {MIN_POINTS}, the first before the first round"
        raise UsageError(f"run {run.name} has {counted}: {why}", hint="train more rounds, or set evaluate.every=1")
    spent = _asked(run.home, _SPENT, run.name).to_pylist()
    rounds = [row["round"] for row in rows]
    tokens = [sum(int(each["tokens"]) for each in spent if each["round"] <= at) for at in rounds]
    if not all(tokens[1:]):
        hint = "train it on rollouts of its own"
        raise UsageError(f"run {run.name} sampled nothing before its evaluation of round {rounds[1]}", hint=hint)
    return chosen, rounds, tokens, [row["pass_at_1"] for row in rows]


def _fitted(tokens: Sequence[int], rates: Sequence[float]) -> "Sigmoid":
    import numpy as np  # slow to import, as is SciPy

    from gradus.tasks.inspect.comparing.trainings import fit_sigmoid

    return fit_sigmoid(np.array(tokens, np.float64), np.array(rates, np.float64))


def _asked(home: Home, query: str, run: str | None) -> pa.Table:
    from gradus.tasks.inspect.sql_views import ask  # DuckDB, which a call that computes need not wait for

    with ask(home, query, run, aside) as answer:
        return answer.table()


def _evaluation(home: Home, row: Attempt) -> Mapping[str, object]:
    """One evaluation as its stage reported it; null for what was not measured."""
    found = cast("Evaluation", read_report(Store(home.lake), Ref.parse(row["output"])).get("summary", {}))
    first = found["pass_at"].get("1")
    gain = found.get("versus", {}).get("gain")
    return {
        **{key: found[key] for key in ("suite", "rollouts", "judged")},
        "round": row["round"],
        "problems": found["rows"],
        "artifact": row["output"],
        **({"pass_at_1": first["value"], "low": first["low"], "high": first["high"]} if first else {}),
        "gain": gain["value"] if gain else None,
    }
