"""The figures of a report: curves by round with intervals, maps of pass rates, tables; from the rows of one run.

Whatever has no data is left out. Left out too: smoothing, and curves of single optimiser steps (MLflow has them).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.data.arrays import Floats
from gradus.data.lake.store import Ref
from gradus.data.records import Figure
from gradus.tasks.inspect.run_rows import Row, RunRows

MAX_PROBLEMS = 240
"""Rows of a map; of more problems every n-th is shown, in order of their pass rate."""
NOT_SOLVED = "not solved"
RESAMPLES = 1000
"""Draws of groups for an interval."""


@dataclass(frozen=True)
class Point:
    """A value at a round with the ends of its band; NaN if it has none."""

    round: int
    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Curve:
    """Points in the order of their rounds."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """Curves of one quantity over the rounds; `note` says what the bands are."""

    key: str
    title: str
    unit: str
    note: str
    curves: Sequence[Curve]

    @property
    def is_zero(self) -> bool:
        """Whether every value is 0, which a sentence says as well as a drawing."""
        return all(point.value == 0 for curve in self.curves for point in curve.points)


@dataclass(frozen=True)
class RateMap:
    """Pass rates (problems, rounds), the hardest problem first; NaN if a problem was not sampled in a round."""

    key: str
    title: str
    note: str
    problems: Sequence[str]
    rounds: Sequence[int]
    rates: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Stack:
    """Counts by round (parts, rounds), drawn one above the other."""

    key: str
    title: str
    note: str
    rounds: Sequence[int]
    parts: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Evaluated:
    """An evaluation as its stage reported it: pass@k by k as text, and the gain over the starting policy."""

    suite: str
    round: int
    artifact: str
    pass_at: Mapping[str, Figure]
    gain: Figure | None


@dataclass(frozen=True)
class StageCost:
    """What the attempts of a stage cost together; tokens are those sampled, 0 for a stage that samples none."""

    stage: str
    purpose: str
    ran: int
    reused: int
    unfinished: int
    seconds: float
    tokens: int


_STEP_CHARTS = {
    "entropy": ("Entropy", "nats", ("policy/entropy",)),
    "kl": ("KL", "nats", ("policy/kl_ref", "policy/kl_old")),
    "gradient-norm": ("Gradient norm", "", ("policy/grad_norm",)),
    "clipped": ("Clipped tokens", "share", ("policy/clip_frac_low", "policy/clip_frac_high")),
}
_MISMATCH = {"mismatch/kl": "KL of the same tokens", "mismatch/logp_diff_mean": "mean |difference|"}


def charts(rows: RunRows) -> list[Chart]:
    """Return every chart that the run has data for, in the order of the page."""
    found = [_reward(rows), *_pass_at(rows), *_by_step(rows), _lengths(rows), *_mismatch(rows)]
    return [chart for chart in found if chart.curves]


def _reward(rows: RunRows) -> Chart:
    """The mean reward of each round; intervals resample groups, whose rollouts depend on each other."""
    groups = rows.ask(
        """
        select purpose, round, count(*) as n, sum(reward) as total from sampled
        where reward is not null and purpose not like 'eval%' and purpose <> 'given'
        group by purpose, round, rollouts_artifact, coalesce(group_id, problem_id) order by all
        """
    )
    by_round: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for purpose, at, number, total in groups:
        by_round.setdefault((purpose, at), []).append((number, total))
    points = [(*key, *_mean_of_groups(np.array(own, dtype=np.float64))) for key, own in by_round.items()]
    note = "mean of the round's rollouts; band: 95 % bootstrap interval over groups"
    return Chart("reward", "Reward", "", note, _curves(points))


def _mean_of_groups(groups: Floats) -> tuple[float, float, float]:
    """Mean of all rollouts and its percentile bootstrap interval, of counts and sums by group (G, 2).

    Groups that all agree have no interval: resampled, they would claim one without width.
    """
    count, total = groups.T
    mean = float(total.sum() / count.sum())
    if len(np.unique(total / count)) < 2:
        return mean, math.nan, math.nan
    rng = np.random.default_rng(0)
    drawn = (rng.integers(0, len(groups), len(groups)) for _ in range(RESAMPLES))
    low, high = np.quantile([total[index].sum() / count[index].sum() for index in drawn], [0.025, 0.975])
    return mean, min(mean, float(low)), max(mean, float(high))


def _pass_at(rows: RunRows) -> Iterator[Chart]:
    """pass@k of every suite, as the stage `evaluate` reported it."""
    found: dict[str, list[tuple[str, int, float, float, float]]] = {}
    for each in evaluations(rows):
        for k, figure in each.pass_at.items():
            place = found.setdefault(each.suite, [])
            place.append((f"pass@{k}", each.round, figure["value"], figure["low"], figure["high"]))
    for suite, points in found.items():
        note = "unbiased estimate; band: 95 % interval over problems"
        yield Chart(f"pass-at-k-{_plain(suite)}", f"pass@k on {suite}", "", note, _curves(sorted(points)))


def _plain(name: str) -> str:
    """A name in the characters of a file."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def evaluations(rows: RunRows) -> Iterator[Evaluated]:
    """Return every evaluation of the run."""
    for row in rows.lineage.current(rows.run):
        if row["stage"] == "evaluate":
            ref = Ref.parse(row["output"])
            summary: Mapping[str, Any] = rows.report(ref).get("summary", {})
            gain = summary.get("versus", {}).get("gain")
            yield Evaluated(str(summary.get("suite", "")), row["round"], ref.digest, summary.get("pass_at", {}), gain)


def _by_step(rows: RunRows) -> Iterator[Chart]:
    """What updates report of each optimiser step, by round."""
    for key, (title, unit, names) in _STEP_CHARTS.items():
        points = rows.ask(
            """
            select name, round, avg(value), min(value), max(value) from metrics
            where stage = 'update' and step is not null and list_contains(?, name) group by all order by name, round
            """,
            [list(names)],
        )
        note = "mean of the round's optimiser steps; band: least to largest step"
        yield Chart(key, title, unit, note, _curves(points))


def _lengths(rows: RunRows) -> Chart:
    points = rows.ask(
        """
        select purpose, round, avg(tokens), quantile_cont(tokens, 0.1), quantile_cont(tokens, 0.9)
        from sampled where tokens is not null group by all order by purpose, round
        """
    )
    return Chart("length", "Completion length", "tokens", "mean; band: 10th to 90th percentile", _curves(points))


def _mismatch(rows: RunRows) -> Iterator[Chart]:
    """How far the trainer's log-probs are from the sampler's, of rows and as updates report it."""
    points = rows.ask(
        """
        select 'rows of the update', round, avg(mismatch), quantile_cont(mismatch, 0.1), quantile_cont(mismatch, 0.9)
        from sampled where mismatch is not null group by all order by round
        """
    )
    note = "mean |trainer's - sampler's log-prob| of a row; band: 10th to 90th percentile of rows"
    yield Chart("mismatch", "Mismatch of trainer and sampler", "nats", note, _curves(points))
    reported = rows.ask(
        "select name, round, value, 'nan'::double, 'nan'::double from metrics "
        "where stage = 'update' and step is null and list_contains(?, name) order by name, round",
        [list(_MISMATCH)],
    )
    named = [(_MISMATCH[name], *rest) for name, *rest in reported]
    yield Chart("mismatch-reported", "Mismatch of tokens", "nats", "over all tokens of the update", _curves(named))


def _curves(points: Sequence[Row]) -> list[Curve]:
    """Curves of rows (name, round, value, low, high), in the order in which their names come."""
    found: dict[str, list[Point]] = {}
    for name, at, value, low, high in points:
        if value is not None and math.isfinite(value):
            found.setdefault(name, []).append(Point(at, value, _number(low), _number(high)))
    return [Curve(name, found[name]) for name in sorted(found, key=_rank)]


def _rank(name: str) -> tuple[int, int, str]:
    """Training first, then hints, then what is measured before and beside it; numbers in their order."""
    kinds = ("train", "hint", "profile", "eval")
    kind = next((place for place, kind in enumerate(kinds) if name.startswith(kind)), len(kinds))
    return kind, int(re.sub(r"[^0-9]", "", name)[:9] or 0), name


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def rate_maps(rows: RunRows) -> list[RateMap]:
    """Return the pass rates of the training's problems, and of the evaluated ones, over the rounds."""
    note = "share of right completions without hints; grey: not sampled in that round"
    found = [
        _rate_map(rows, "difficulty", "Training problems", note, held_out=False),
        _rate_map(rows, "held-out", "Evaluated problems", note, held_out=True),
    ]
    return [each for each in found if each.problems]


def _rate_map(rows: RunRows, key: str, title: str, note: str, *, held_out: bool) -> RateMap:
    cells = rows.ask(
        """
        select problem_id, round, avg(correct::int) as rate from sampled
        where correct is not null and hint_level = 0
            and case when ? then purpose like 'eval%' else purpose in ('profile', 'train') end
        group by all
        """,
        [held_out],
    )
    by_problem: dict[str, dict[int, float]] = {}
    for problem, at, rate in cells:
        by_problem.setdefault(problem, {})[at] = rate
    rounds = sorted({at for _, at, _ in cells})
    ordered = sorted(by_problem, key=lambda name: (sum(by_problem[name].values()) / len(by_problem[name]), name))
    step = -(-len(ordered) // MAX_PROBLEMS) or 1
    shown = ordered[::step]
    what = f"one in {step} of {len(ordered):,} problems" if step > 1 else f"{len(ordered):,} problems"
    rates = [[by_problem[name].get(at, math.nan) for at in rounds] for name in shown]
    return RateMap(key, title, f"{what}, the hardest at the top; {note}", shown, rounds, rates)


def hint_use(rows: RunRows) -> Stack | None:
    """Return by round at which hint level problems were first solved; None if no rollout had a hint."""
    cells = rows.ask(
        """
        with solved as (
            select round, problem_id, min(hint_level) filter (correct) as level from sampled
            where purpose = 'train' or purpose like 'hint%' group by all
        )
        select level, round, count(*) from solved group by all order by level nulls last, round
        """
    )
    (hinted,) = rows.one("select count(*) from sampled where hint_level > 0")
    if not hinted:
        return None
    rounds = sorted({at for _, at, _ in cells})
    counts = {(level, at): num for level, at, num in cells}
    names = {level: _solved(level) for level, _, _ in cells}
    parts = {name: [counts.get((level, at), 0) for at in rounds] for level, name in names.items()}
    note = "problems of each round by the first hint level at which a completion was right"
    return Stack("hints", "Hints and what they rescued", note, rounds, parts)


def _solved(level: int | None) -> str:
    if level is None:
        return NOT_SOLVED
    return f"rescued by hint level {level}" if level else "solved without a hint"


def costs(rows: RunRows) -> list[StageCost]:
    """Return seconds, attempts and sampled tokens by stage and purpose, the most expensive first."""
    found = rows.ask(
        """
        with sampling as (
            select purpose, sum(tokens) as tokens from sampled group by purpose
        ),
        work as (
            select stage, purpose, count(*) filter (status = 'finished') as ran,
                count(*) filter (status = 'reused') as reused,
                count(*) filter (status not in ('finished', 'reused')) as unfinished, sum(seconds) as seconds
            from stages group by all
        )
        select stage, work.purpose, ran, reused, unfinished, seconds,
            case when stage = 'rollout' then coalesce(tokens, 0)::bigint else 0 end
        from work left join sampling using (purpose) order by seconds desc, stage, purpose
        """
    )
    return [StageCost(*row) for row in found]
