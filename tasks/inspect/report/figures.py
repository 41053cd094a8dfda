"""The figures of a report: queries on the rows of one run, as numbers by name and round.

Whatever has no data is left out. Left out too: smoothing, and curves of single optimiser steps (MLflow has them).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gradus.data.arrays import Floats
from gradus.data.lake.store import Ref
from gradus.tasks.formats import count, interval, number
from gradus.tasks.inspect.run_rows import Row, RunRows

MAX_PROBLEMS = 240
"""Rows of a map; of more problems every n-th is shown, in order of their pass rate."""
NOT_SOLVED = "not solved"
RESAMPLES = 1000
"""Draws of groups for an interval."""


@dataclass(frozen=True)
class Figure:
    """Numbers by name and round, how they are drawn, and what they are.

    At a round a line has a value with the ends of its band, NaN without one; a heat map a pass rate; bars a count.
    Costs stand at round 0: attempts that ran, were reused, did not finish, then seconds and tokens sampled.
    """

    key: str
    title: str
    note: str
    kind: Literal["lines", "heat", "bars", "costs"]
    frame: Mapping[str, Mapping[int, Sequence[float]]]
    unit: str = ""

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def rounds(self) -> list[int]:
        """Every round that a number stands at."""
        return sorted({at for row in self.frame.values() for at in row})

    @property
    def is_zero(self) -> bool:
        """Return whether every value is 0, which a sentence says as well as a drawing."""
        return all(numbers[0] == 0 for row in self.frame.values() for numbers in row.values())

    @property
    def table(self) -> list[list[str]]:
        """The numbers below the drawing, with their head; none below a map."""
        match self.kind:
            case "heat":
                return []
            case "costs":
                head = ["stage", "ran", "reused", "unfinished", "seconds", "tokens sampled"]
                return [head, *([name, *_cost_cells(row[0])] for name, row in self.frame.items())]
            case "lines" | "bars":
                rows = ([str(at), *(self._cell(row.get(at)) for row in self.frame.values())] for at in self.rounds)
                return [["round", *self.frame], *rows]

    def _cell(self, numbers: Sequence[float] | None) -> str:
        if self.kind == "bars":
            return count(int(numbers[0]) if numbers else 0)
        if numbers is None:
            return "-"
        value, low, high = numbers
        return interval({"value": value, "low": low, "high": high}, number)


def _cost_cells(cost: Sequence[float]) -> list[str]:
    """Counts and seconds; nothing for 0, of which the table would be full."""
    ran, reused, unfinished, seconds, tokens = cost
    counts = [f"{each:,.0f}" if each else "" for each in (ran, reused, unfinished, tokens)]
    return [*counts[:3], f"{seconds:,.1f}", counts[3]]


_STEPS = """
select name, round, avg(value), min(value), max(value) from metrics
where stage = 'update' and step is not null and list_contains(?, name) group by all order by name, round
"""
_OF_STEPS = "mean of the round's optimiser steps; band: least to largest step"
_QUANTILES = """
select {name}, round, avg({column}), quantile_cont({column}, 0.1), quantile_cont({column}, 0.9)
from sampled where {column} is not null group by all order by all
"""
_LENGTHS = _QUANTILES.format(name="purpose", column="tokens")
_MISMATCH = _QUANTILES.format(name="'rows of the update'", column="mismatch")
_OF_ROWS = "mean |trainer's - sampler's log-prob| of a row; band: 10th to 90th percentile of rows"
_REPORTED = """
select if(name = 'mismatch/kl', 'KL of the same tokens', 'mean |difference|'), round, value, null, null from metrics
where stage = 'update' and step is null and name in ('mismatch/kl', 'mismatch/logp_diff_mean') order by name, round
"""
_CHARTS = (
    ("entropy", "Entropy", "nats", _OF_STEPS, _STEPS, (["policy/entropy"],)),
    ("kl", "KL", "nats", _OF_STEPS, _STEPS, (["policy/kl_ref", "policy/kl_old"],)),
    ("gradient-norm", "Gradient norm", "", _OF_STEPS, _STEPS, (["policy/grad_norm"],)),
    ("clipped", "Clipped tokens", "share", _OF_STEPS, _STEPS, (["policy/clip_frac_low", "policy/clip_frac_high"],)),
    ("length", "Completion length", "tokens", "mean; band: 10th to 90th percentile", _LENGTHS, ()),
    ("mismatch", "Mismatch of trainer and sampler", "nats", _OF_ROWS, _MISMATCH, ()),
    ("mismatch-reported", "Mismatch of tokens", "nats", "over all tokens of the update", _REPORTED, ()),
)
"""Key, title, unit, note and query of name, round, value and band; updates report of each optimiser step."""


_MAPS = (
    ("difficulty", "Training problems", "purpose not like 'eval%'"),
    ("held-out", "Evaluated problems", "purpose like 'eval%'"),
)
"""Key, title and condition of each map."""


def charts(rows: RunRows) -> list[Figure]:
    """Return every chart that the run has data for, in the order of the page."""
    note = "mean of the round's rollouts; band: 95 % bootstrap interval over groups"
    found = [_chart("reward", "Reward", "", note, _rewards(rows)), *_pass_at(rows)]
    for key, title, unit, note, query, values in _CHARTS:
        found.append(_chart(key, title, unit, note, rows.ask(query, values)))
    return [chart for chart in found if chart.frame]


def _chart(key: str, title: str, unit: str, note: str, points: Iterable[Row]) -> Figure:
    """Return rows (name, round, value, low, high) as curves."""
    frame = _frame(points)
    return Figure(key, title, note, "lines", {name: frame[name] for name in sorted(frame, key=_rank)}, unit)


def _rewards(rows: RunRows) -> Iterator[Row]:
    """The mean reward of each round; intervals resample groups, whose rollouts depend on each other."""
    groups = rows.ask(
        """
        with groups as (
            select purpose, round, count(*) as n, sum(reward) as total from sampled
            where reward is not null and purpose not like 'eval%'
            group by purpose, round, rollouts_artifact, coalesce(group_id, problem_id) order by all
        )
        select purpose, round, list([n, total]) from groups group by all order by all
        """
    )
    for purpose, at, own in groups:
        yield purpose, at, *mean_of_groups(np.array(own, dtype=np.float64))


def mean_of_groups(groups: Floats) -> tuple[float, float, float]:
    """Mean of all rollouts and its percentile bootstrap interval, of counts and sums by group (G, 2).

    Groups that all agree have no interval: resampled, they would claim one without width.
    """
    counts, total = groups.T
    mean = float(total.sum() / counts.sum())
    if len(np.unique(total / counts)) < 2:
        return mean, math.nan, math.nan
    rng = np.random.default_rng(0)
    drawn = (rng.integers(0, len(groups), len(groups)) for _ in range(RESAMPLES))
    low, high = np.quantile([total[index].sum() / counts[index].sum() for index in drawn], [0.025, 0.975])
    return mean, min(mean, float(low)), max(mean, float(high))


def _pass_at(rows: RunRows) -> Iterator[Figure]:
    """pass@k of every suite, as the stage `evaluate` reported it."""
    found: dict[str, list[Row]] = {}
    for at, _, each in evaluations(rows):
        points = ((f"pass@{k}", at, f["value"], f["low"], f["high"]) for k, f in each.get("pass_at", {}).items())
        found.setdefault(each.get("suite", ""), []).extend(points)
    note = "unbiased estimate; band: 95 % interval over problems"
    for suite, points in found.items():
        key = re.sub(r"[^A-Za-z0-9_-]", "_", suite)
        yield _chart(f"pass-at-k-{key}", f"pass@k on {suite}", "", note, sorted(points))


def evaluations(rows: RunRows) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Return round, artifact and summary of every evaluation of the run."""
    for row in rows.lineage.current(rows.run):
        if row["stage"] == "evaluate":
            ref = Ref.parse(row["output"])
            yield row["round"], ref.digest, rows.report(ref).get("summary", {})


def _frame(points: Iterable[Row]) -> dict[str, dict[int, Sequence[float]]]:
    """Frame of rows (name, round, numbers), in the order in which names come; a row without a number is left out."""
    found: dict[str, dict[int, Sequence[float]]] = {}
    for name, at, *values in points:
        numbers = tuple(math.nan if each is None else float(each) for each in values)
        if math.isfinite(numbers[0]):
            found.setdefault(name, {})[at] = numbers
    return found


def _rank(name: str) -> tuple[int, int, str]:
    """Training first, then waves, then what is measured before and beside it; numbers in their order."""
    kinds = ("train", "", "profile", "eval")
    kind = next((place for place, kind in enumerate(kinds) if kind and name.startswith(kind)), kinds.index(""))
    return kind, int(re.sub(r"[^0-9]", "", name)[:9] or 0), name


def rate_maps(rows: RunRows) -> list[Figure]:
    """Return the pass rates of the training's problems, and of the evaluated ones, the hardest first."""
    return [found for each in _MAPS if (found := _rate_map(rows, *each)).frame]


def _rate_map(rows: RunRows, key: str, title: str, which: str) -> Figure:
    cells = rows.ask(
        f"""
        with cells as (
            select problem_id, round, avg(correct::int) as rate from sampled
            where correct is not null and bare and {which} group by all
        )
        select * from cells order by avg(rate) over (partition by problem_id), problem_id, round
        """  # noqa: S608 - ours
    )
    found = _frame(cells)
    step = -(-len(found) // MAX_PROBLEMS) or 1
    what = f"one in {step} of {len(found):,} problems" if step > 1 else f"{len(found):,} problems"
    note = f"{what}, the hardest at the top; share of right completions without hints; grey: not sampled in that round"
    return Figure(key, title, note, "heat", {name: found[name] for name in list(found)[::step]})


def hint_use(rows: RunRows) -> Figure | None:
    """Return by round at which hint level problems were first solved; None if no rollout had a hint."""
    cells = rows.ask(
        f"""
        with solved as (
            select round, problem_id, min(hint_level) filter (correct) as level from sampled
            where use is null and coalesce(origin, 'own') = 'own' and purpose <> 'profile' and purpose not like 'eval%'
            group by all
        )
        select case when level is null then '{NOT_SOLVED}' when level = 0 then 'solved without a hint'
            else 'rescued by hint level ' || level end, round, count(*)
        from solved group by level, round order by level nulls last, round
        """  # noqa: S608 - ours
    )
    (hinted,) = rows.one("select count(*) from sampled where hint_level > 0")
    note = "problems of each round by the first hint level at which a completion was right"
    return Figure("hints", "Hints and what they rescued", note, "bars", _frame(cells)) if hinted else None


_HELP = """
with help_by_round as (
    select round, sum(accuracy * rollouts) filter (helped) / sum(rollouts) filter (helped) as helped,
        sum(paired_accuracy * paired_rollouts) / sum(paired_rollouts) as paired,
        sum(bare_accuracy * paired_rollouts) / sum(paired_rollouts) as bare,
        max(once_rescued_accuracy) as since, sum(tokens_of_help) as tokens
    from help group by round
)
select * from (
    select 'with help' as name, round, helped as value from help_by_round union all
    select 'with help, asked both ways', round, paired from help_by_round union all
    select 'without help, asked both ways', round, bare from help_by_round union all
    select 'without help, once rescued', round, since from help_by_round union all
    select 'tokens', round, tokens from help_by_round
) where value is not null order by round
"""


def help_curves(rows: RunRows) -> list[Figure]:
    """Return what help costs and brings by round, and what is left without it; nothing of a run without help."""
    frame = _frame((name, at, value, None, None) for name, at, value in rows.ask(_HELP))
    if "with help" not in frame:
        return []
    names = ["with help", "with help, asked both ways", "without help, asked both ways", "without help, once rescued"]
    names = [name for name in names if name in frame and (name != names[1] or frame[name] != frame["with help"])]
    found = {name: frame[name] for name in names}
    note = "right rollouts; asked both ways: problems that the round has with help and without; once rescued: solved "
    note += "with help alone in an earlier round"
    shares = Figure("help", "Accuracy with help and without", note, "lines", found, "share")
    if "tokens" not in frame:
        return [shares]
    note = "prompt tokens that help added to rollouts of problems asked both ways"
    spent = {"all help": frame["tokens"]}
    return [shares, Figure("help-tokens", "Tokens of help", note, "lines", spent, "tokens")]


def costs(rows: RunRows) -> Figure:
    """Return attempts, seconds and sampled tokens by stage and purpose, the most expensive first."""
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
        ),
        spent as (
            select stage, work.purpose, ran, reused, unfinished, seconds,
                case when stage = 'rollout' then coalesce(tokens, 0)::bigint else 0 end as tokens
            from work left join sampling using (purpose)
        )
        select if(purpose in ('train', stage), stage, stage || ' (' || purpose || ')'), 0,
            ran, reused, unfinished, seconds, tokens
        from spent where seconds <> 0 or tokens <> 0 order by seconds desc, stage, purpose
        """
    )
    note = "seconds of all attempts; tokens of the rollouts that the run used, sampled by it or reused"
    return Figure("costs-by-stage", "Seconds by stage", note, "costs", _frame(found))
