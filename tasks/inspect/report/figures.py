"""The figures of a report: each is a query of names, rounds and numbers, and the kind of its drawing.

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

Kind = Literal["lines", "heat", "bars", "costs"]
MAX_PROBLEMS = 240
"""Rows of a map; of more problems every n-th is shown, in order of their pass rate."""
NOT_SOLVED = "not solved"
RESAMPLES = 1000
"""Draws of groups for an interval."""


@dataclass(frozen=True)
class Figure:
    """Numbers by name and round, how they are drawn, and what they are.

    At a round a line has a value with the ends of its band, NaN without one; a heat map a pass rate; bars a count.
    Costs stand at round 0: seconds, attempts that ran, were reused, did not finish, then tokens sampled.
    """

    key: str
    title: str
    unit: str
    note: str
    kind: Kind
    frame: Mapping[str, Mapping[int, Sequence[float]]]

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
        if self.kind == "heat":
            return []
        if self.kind == "costs":
            head = ["stage", "ran", "reused", "unfinished", "seconds", "tokens sampled"]
            return [head, *([name, *_cost_cells(*row[0])] for name, row in self.frame.items())]
        rows = ([str(at), *(self._cell(row.get(at)) for row in self.frame.values())] for at in self.rounds)
        return [["round", *self.frame], *rows]

    def _cell(self, numbers: Sequence[float] | None) -> str:
        if self.kind == "bars":
            return count(numbers[0] if numbers else 0)
        if not numbers:
            return "-"
        value, low, high = numbers
        return interval({"value": value, "low": low, "high": high}, number)


def _cost_cells(seconds: float, *counts: float) -> list[str]:
    """Counts, nothing for 0, of which the table would be full; the seconds before the tokens."""
    *attempts, tokens = (count(each) if each else "" for each in counts)
    return [*attempts, f"{seconds:,.1f}", tokens]


_STEPS = """
select name, round, avg(value), min(value), max(value) from metrics
where stage = 'update' and step is not null and name in ({}) group by all order by all
"""
_OF_STEPS = "mean of the round's optimiser steps; band: least to largest step"
_QUANTILES = """
select {name}, round, avg({column}), quantile_cont({column}, 0.1), quantile_cont({column}, 0.9)
from sampled where {column} is not null group by all order by all
"""
_REPORTED = """
select if(name = 'mismatch/kl', 'KL of the same tokens', 'mean |difference|'), round, value, null, null from metrics
where stage = 'update' and step is null and name in ('mismatch/kl', 'mismatch/logp_diff_mean') order by name, round
"""
_MAP = """
with cells as (
    select problem_id, round, avg(correct::int) as rate from sampled
    where correct is not null and bare and {} group by all
)
select * from cells order by avg(rate) over (partition by problem_id), problem_id, round
"""
_OF_MAPS = "the hardest at the top; share of right completions without hints; grey: not sampled in that round"
_HINTS = f"""
with solved as (
    select round, problem_id, min(hint_level) filter (correct) as level from sampled
    where use is null and coalesce(origin, 'own') = 'own' and purpose <> 'profile' and purpose not like 'eval%'
    group by all
)
select case when level is null then '{NOT_SOLVED}' when level = 0 then 'solved without a hint'
    else 'rescued by hint level ' || level end, round, count(*)
from solved where exists (from sampled where hint_level > 0) group by level, round order by level nulls last, round
"""  # noqa: S608 - ours
_HELP = """
with by_round as (
    select round, sum(accuracy * rollouts) filter (helped) / sum(rollouts) filter (helped) as helped,
        sum(paired_accuracy * paired_rollouts) / sum(paired_rollouts) as paired,
        sum(bare_accuracy * paired_rollouts) / sum(paired_rollouts) as bare,
        max(once_rescued_accuracy) as since, sum(tokens_of_help) as tokens
    from help where exists (from help where helped) group by round
),
curves as (
    select round, helped as "with help", bare as "without help, asked both ways", since as "without help, once rescued",
        if(differs, paired, null) as "with help, asked both ways", tokens as "all help"
    from by_round, (select bool_or(paired is distinct from helped) as differs from by_round)
)
select name, round, value, null, null from (unpivot curves on columns(* exclude round) into name name value value)
where (name = 'all help') = {} order by round
"""
_BY_HELP = (
    "right rollouts; asked both ways: problems that the round has with help and without; once rescued: solved with "
    "help alone in an earlier round"
)
_COSTS = """
with sampling as (
    select purpose, sum(tokens) as tokens from sampled group by purpose
),
work as (
    select stage, purpose, count(*) filter (status = 'finished') as ran, count(*) filter (status = 'reused') as reused,
        count(*) filter (status not in ('finished', 'reused')) as unfinished, sum(seconds) as seconds
    from stages group by all
),
spent as (
    select stage, work.purpose, ran, reused, unfinished, seconds,
        case when stage = 'rollout' then coalesce(tokens, 0)::bigint else 0 end as tokens
    from work left join sampling using (purpose)
)
select if(purpose in ('train', stage), stage, stage || ' (' || purpose || ')'), 0,
    seconds, ran, reused, unfinished, tokens
from spent where seconds <> 0 or tokens <> 0 order by seconds desc, stage, purpose
"""


def _of_steps(key: str, title: str, unit: str, *names: str) -> tuple[str, str, str, str, Kind, str]:
    """Return a chart of metrics that updates report of each optimiser step."""
    return key, title, unit, _OF_STEPS, "lines", _STEPS.format(", ".join(f"'policy/{name}'" for name in names))


_FIGURES: Mapping[str, Sequence[tuple[str, str, str, str, Kind, str]]] = {
    "charts": (
        _of_steps("entropy", "Entropy", "nats", "entropy"),
        _of_steps("kl", "KL", "nats", "kl_ref", "kl_old"),
        _of_steps("gradient-norm", "Gradient norm", "", "grad_norm"),
        _of_steps("clipped", "Clipped tokens", "share", "clip_frac_low", "clip_frac_high"),
        ("length", "Completion length", "tokens", "mean; band: 10th to 90th percentile", "lines",
         _QUANTILES.format(name="purpose", column="tokens")),
        ("mismatch", "Mismatch of trainer and sampler", "nats",
         "mean |trainer's - sampler's log-prob| of a row; band: 10th to 90th percentile of rows", "lines",
         _QUANTILES.format(name="'rows of the update'", column="mismatch")),
        ("mismatch-reported", "Mismatch of tokens", "nats", "over all tokens of the update", "lines", _REPORTED),
    ),
    "maps": (
        ("difficulty", "Training problems", "", _OF_MAPS, "heat", _MAP.format("purpose not like 'eval%'")),
        ("held-out", "Evaluated problems", "", _OF_MAPS, "heat", _MAP.format("purpose like 'eval%'")),
    ),
    "hints": (
        ("hints", "Hints and what they rescued", "",
         "problems of each round by the first hint level at which a completion was right", "bars", _HINTS),
        ("help", "Accuracy with help and without", "share", _BY_HELP, "lines", _HELP.format("false")),
        ("help-tokens", "Tokens of help", "tokens",
         "prompt tokens that help added to rollouts of problems asked both ways", "lines", _HELP.format("true")),
    ),
    "costs": (
        ("costs-by-stage", "Seconds by stage", "",
         "seconds of all attempts; tokens of the rollouts that the run used, sampled by it or reused", "costs", _COSTS),
    ),
}  # fmt: skip
"""By section of the page: key, title, unit, note, kind and query of each figure."""


def figures(rows: RunRows) -> dict[str, list[Figure]]:
    """Return the figures that the run has data for, by section of the page."""
    found = {section: [_figure(each[:-1], rows.ask(each[-1])) for each in asked] for section, asked in _FIGURES.items()}
    note = "mean of the round's rollouts; band: 95 % bootstrap interval over groups"
    reward = _figure(("reward", "Reward", "", note, "lines"), _rewards(rows))
    found["charts"] = [reward, *_pass_at(rows), *found["charts"]]
    return {section: [each for each in drawn if each.frame] for section, drawn in found.items()}


def _figure(drawn: tuple[str, str, str, str, Kind], points: Iterable[Row]) -> Figure:
    """Return rows (name, round, numbers) as a figure; a row without a number is left out."""
    key, title, unit, note, kind = drawn
    frame: dict[str, dict[int, Sequence[float]]] = {}
    for name, at, *values in points:
        numbers = tuple(math.nan if each is None else float(each) for each in values)
        if math.isfinite(numbers[0]):
            frame.setdefault(name, {})[at] = numbers
    names = sorted(frame, key=_rank) if kind == "lines" else list(frame)
    if kind == "heat":
        step = -(-len(names) // MAX_PROBLEMS) or 1
        note = f"{f'one in {step} of ' if step > 1 else ''}{len(names):,} problems, {note}"
        names = names[::step]
    return Figure(key, title, unit, note, kind, {name: frame[name] for name in names})


def _rank(name: str) -> tuple[int, int, str]:
    """Training first, then waves, then what is measured before and beside it; numbers in their order."""
    kinds = ("train", "", "profile", "eval")
    kind = next((place for place, kind in enumerate(kinds) if kind and name.startswith(kind)), kinds.index(""))
    return kind, int(re.sub(r"[^0-9]", "", name)[:9] or 0), name


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
        yield _figure((f"pass-at-k-{key}", f"pass@k on {suite}", "", note, "lines"), sorted(points))


def evaluations(rows: RunRows) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Return round, artifact and summary of every evaluation of the run."""
    for row in rows.lineage.current(rows.run):
        if row["stage"] == "evaluate":
            ref = Ref.parse(row["output"])
            yield row["round"], ref.digest, rows.report(ref).get("summary", {})
