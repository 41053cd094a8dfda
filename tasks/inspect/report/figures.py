"""The figures of a report: each is a query of names, rounds and numbers, and the kind of its drawing by matplotlib.

Whatever has no data is left out. Left out too: smoothing, and curves of single optimiser steps (MLflow has them).

A drawing is SVG that takes the colours of its page, or PNG on white. Text stays text in the SVG, colours are CSS
variables of the page, so that one drawing is readable in light and dark. Titles are left to the page, so that no label
is cut.
"""

import contextlib
import io
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from gradus.data.arrays import Floats
from gradus.data.files import replacing
from gradus.data.lake.store import Ref
from gradus.tasks.formats import count, interval, label, number, visible
from gradus.tasks.host.libraries import default_drawing
from gradus.tasks.inspect.sql_views import Row, RunRows, report_of

Kind = Literal["lines", "heat", "bars", "costs"]
MAX_PROBLEMS = 240
"""Rows of a map; of more problems every n-th is shown, in order of their pass rate."""
NOT_SOLVED = "not solved"
RESAMPLES = 1000
INK, FAINT = "#1f2328", "#8b949e"
SERIES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#57606a")
VARIABLES = {INK: "--ink", FAINT: "--faint", **{colour: f"--series-{i}" for i, colour in enumerate(SERIES)}}
"""The CSS variable that stands for each colour of a drawing."""
MAX_BARS = 12
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradus",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
}


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
    """Mean of all rollouts and its bootstrap interval, of counts and sums by group (G, 2); none if all groups agree."""
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
            yield row["round"], ref.digest, report_of(rows.lineage, ref).get("summary", {})


@contextlib.contextmanager
def _drawn(figure: Figure) -> Generator[Drawing]:
    """Provide the drawing of a figure while matplotlib has the style to save it in."""
    with default_drawing(_STYLE):
        drawing = Drawing(figsize=(6.4, _height(figure)), layout="constrained")
        {"lines": _lines, "heat": _heat, "bars": _bars, "costs": _costs}[figure.kind](drawing.subplots(), figure)
        yield drawing


def _height(figure: Figure) -> float:
    """Return the height of a drawing, inches."""
    num = len(figure.frame)
    heights = {"heat": min(5.0, max(1.6, 0.035 * num + 1.0)), "costs": 0.28 * min(MAX_BARS, num) + 0.7}
    return heights.get(figure.kind, 3.0)


def _lines(axes: Axes, figure: Figure) -> None:
    for index, (name, points) in enumerate(figure.frame.items()):
        colour = SERIES[index % len(SERIES)]
        at, (value, low, high) = list(points), np.array(list(points.values())).T
        axes.plot(at, value, color=colour, marker="o", markersize=3, linewidth=1.5, label=label(name))
        if len(at) > 1:
            axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        elif np.isfinite(low).all():
            axes.vlines(at, low, high, colors=colour)
    axes.set_ylabel(figure.unit)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    _rounds(axes, named=len(figure.frame) > 1)


def _heat(axes: Axes, figure: Figure) -> None:
    rounds, rates = figure.rounds, np.ma.masked_invalid(_by_round(figure, np.nan))
    drawn = axes.imshow(rates, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=1)
    axes.grid(visible=False)
    axes.set_facecolor((FAINT, 0.3))  # what was not sampled is not taken for a pass rate of 0
    places = np.unique(np.linspace(0, len(rounds) - 1, min(12, len(rounds))).round().astype(int))
    axes.set_xticks(places, [str(rounds[place]) for place in places])
    axes.set_yticks([])
    axes.set_xlabel("round")
    axes.set_ylabel(f"{len(rates)} problems")
    axes.figure.colorbar(drawn, ax=axes, label="pass rate", shrink=min(1.0, 2.4 / _height(figure)))


def _bars(axes: Axes, figure: Figure) -> None:
    counts = _by_round(figure, 0)
    for index, (name, below) in enumerate(zip(figure.frame, np.cumsum(counts, axis=0) - counts, strict=True)):
        colour = FAINT if name == NOT_SOLVED else SERIES[2 * index % len(SERIES)]
        axes.bar(figure.rounds, counts[index], bottom=below, color=colour, label=label(name))
    axes.set_ylabel("problems")
    _rounds(axes, named=True)


def _costs(axes: Axes, figure: Figure) -> None:
    seconds = {label(name): row[0][0] for name, row in figure.frame.items() if row[0][0] > 0}
    names = list(seconds)[:MAX_BARS][::-1]
    axes.barh(names, [seconds[name] for name in names], color=SERIES[0])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds")


def _by_round(figure: Figure, absent: float) -> Floats:
    """Return the first number of each name and round (N, R)."""
    return np.array([[row.get(at, (absent,))[0] for at in figure.rounds] for row in figure.frame.values()], np.float64)


def _rounds(axes: Axes, *, named: bool) -> None:
    """Have whole rounds below the axes, and the names above them, where they hide nothing."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if axes.get_xlim()[1] - axes.get_xlim()[0] < 1:
        middle = sum(axes.get_xlim()) / 2
        axes.set_xlim(middle - 0.5, middle + 0.5)
    if named:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def svg(figure: Figure) -> Markup:
    """Return the drawing as an element of a page: no colours, sizes, ids or metadata of its own, texts escaped."""
    out = io.StringIO()
    with _drawn(figure) as drawing:
        drawing.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{figure.key}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    named = f'<svg role="img" aria-label="{escape(visible(figure.heading, 200))}" '
    return Markup(text.replace("<svg ", named, 1))  # noqa: S704 - matplotlib has escaped the texts in it


def write_png(figure: Figure, path: Path) -> None:
    """Write the drawing on white under its title."""
    with replacing(path) as file, _drawn(figure) as drawing:
        drawing.suptitle(label(figure.heading), fontsize=11)
        drawing.savefig(file, format="png", dpi=150, facecolor="white")
