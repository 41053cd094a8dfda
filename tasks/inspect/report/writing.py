"""Write a run's report: `report.html`, one file that loads nothing and runs nothing, and its pictures as PNG.

write_report(Home.from_environment(), "demo-1a2b3c4d", Path("report.html"), print)

echo null | python -m gradus.tasks.inspect.report.writing RUN FILE     # in a process of its own (see at_end.py)
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup
from matplotlib.figure import Figure

from gradus.data.errors import GradusError, OnDamage, UsageError, in_words, refuse
from gradus.data.files import replace_file
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import visible
from gradus.tasks.inspect.groups import why
from gradus.tasks.inspect.remarks import remarks
from gradus.tasks.inspect.report.choices import Flips, Shown, chosen_groups, evaluated_groups, flips
from gradus.tasks.inspect.report.figures import (
    Chart,
    RateMap,
    Stack,
    StageCost,
    charts,
    costs,
    evaluations,
    hint_use,
    rate_maps,
)
from gradus.tasks.inspect.report.pictures import (
    draw_chart,
    draw_costs,
    draw_map,
    draw_stack,
    stage_name,
    svg,
    write_png,
)
from gradus.tasks.inspect.report.samples import sample_table
from gradus.tasks.inspect.report.text import band, brief, coloured, count, duration, number
from gradus.tasks.inspect.run_rows import RunRows, open_run
from gradus.tasks.inspect.token_pieces import Tokenizers
from gradus.tasks.runs.journal import read_settings

HERE = Path(__file__).parent
TABLES = ("metrics", "stages", "evaluations")
"""What a report reads beside `sampled`."""

_FILTERS: Mapping[str, Callable[..., str]] = {
    "shown": visible,
    "number": number,
    "count": count,
    "brief": brief,
    "coloured": coloured,
    "why": why,
}

Card = tuple[str, str, str]


@dataclass(frozen=True)
class Ending:
    """How the run ended, where its journal does not say so yet."""

    status: str
    error: str = ""


@dataclass(frozen=True)
class Picture:
    """A drawing with its title, what it shows, and its numbers."""

    key: str
    title: str
    note: str
    figure: Figure
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_open: bool = False
    """Whether the numbers are shown from the start."""

    @property
    def svg(self) -> Markup:
        """The drawing as an element of the page; matplotlib has escaped the texts in it."""
        return Markup(svg(self.figure, self.key, self.title))  # noqa: S704


@dataclass(frozen=True)
class Page:
    """Everything that the page says."""

    run: str
    story: str
    settings: str
    num_rollouts: int
    cards: Sequence[Card]
    remarks: Sequence[str]
    charts: Sequence[Picture]
    zero: Sequence[str]
    """Titles of the charts that are left out because every value is 0."""
    maps: Sequence[Picture]
    hints: Picture | None
    costs: Picture | None
    flips: Sequence[Flips]
    groups: Sequence[Shown]

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Anchor and name of each section that there is."""
        every = (
            ("curves", "curves", self.charts),
            ("maps", "difficulty", self.maps),
            ("hints-used", "hints", self.hints),
            ("solved-and-lost", "newly solved and lost", self.flips),
            ("costs", "time and tokens", self.costs),
            ("groups", "samples by group", self.groups),
        )
        return [(anchor, name) for anchor, name, there in every if there]

    @property
    def pictures(self) -> list[Picture]:
        """All drawings in the order of the page."""
        return [each for each in (*self.charts, *self.maps, self.hints, self.costs) if each is not None]


def write_report(
    home: Home,
    run: str,
    out: Path,
    say: Callable[[str], None],
    *,
    pictures: Path | None = None,
    table: Path | None = None,
    ending: Ending | None = None,
    on_damage: OnDamage = refuse,
) -> list[Path]:
    """Write the report of a run, its pictures as PNG into a folder, and its table of samples; return the files.

    Raise UsageError if there is no such run or no such folder.
    """
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", hint="make it, or give another --out")
    with open_run(home, run, say, TABLES, on_damage) as rows:
        page = read_page(rows, ending)
        if table is not None:
            samples = sample_table(evaluated_groups(rows, Tokenizers(rows.store, rows.run.on_damage)), page.groups)
            replace_file(table, samples)
    replace_file(out, render(page))
    written = [out, *([table] if table else [])]
    if pictures is None:
        return written
    pictures.mkdir(parents=True, exist_ok=True)
    for each in page.pictures:
        write_png(each.figure, each.title, pictures / f"{each.key}.png")
    return [*written, *(pictures / f"{each.key}.png" for each in page.pictures)]


def read_page(rows: RunRows, ending: Ending | None = None) -> Page:
    """Return what the report of a run says."""
    tokenizers, spent = (
        Tokenizers(rows.store, rows.run.on_damage),
        [cost for cost in costs(rows) if cost.seconds or cost.tokens],
    )
    hints, flipped = hint_use(rows), flips(rows, tokenizers)
    drawn = charts(rows)
    return Page(
        run=rows.run.name,
        story=_story(rows, ending),
        settings=_settings(rows),
        num_rollouts=rows.one("select count(*) from sampled")[0],
        cards=_cards(rows, drawn, flipped, spent),
        remarks=remarks(rows.store, rows.lineage.current(rows.run)),
        charts=[_of_chart(each) for each in drawn if not each.is_zero],
        zero=[each.title for each in drawn if each.is_zero],
        maps=[_of_map(each) for each in rate_maps(rows)],
        hints=_of_stack(hints) if hints else None,
        costs=_of_costs(spent) if spent else None,
        flips=flipped,
        groups=chosen_groups(rows, tokenizers),
    )


def render(page: Page) -> str:
    """Return the page as HTML; every text in it is escaped."""
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(_FILTERS)
    css = Markup((HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - ours
    return environment.from_string((HERE / "page.html").read_text(encoding="utf-8")).render(page=page, css=css).lstrip()


def _story(rows: RunRows, ending: Ending | None) -> str:
    """What the run was and how it ended, in a sentence or two."""
    brief = rows.run.brief
    status, error = (ending.status, ending.error) if ending else (brief["status"], brief["error"])
    began = brief["started"]
    when = f", begun {datetime.fromtimestamp(began).astimezone():%d %b %Y %H:%M}" if began else ""
    because = f": {hide(error)}" if error else ""
    return f"gradus {brief['verb']}{when}: {status}{because}."


def _settings(rows: RunRows) -> str:
    settings = read_settings(rows.run.folder, rows.run.on_damage)
    recipe: Mapping[str, object] = settings.get("recipe", {})
    facts = {"recipe": recipe.get("name"), "rounds": recipe.get("rounds"), "seed": settings.get("seed")}
    return "; ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _cards(rows: RunRows, drawn: Sequence[Chart], flipped: Sequence[Flips], spent: Sequence[StageCost]) -> list[Card]:
    """The figures that people ask for first."""
    found: list[Card] = []
    for chart in drawn:
        for curve in chart.curves:
            if chart.key.startswith("pass-at-k") and curve.name == "pass@1":
                first, last = curve.points[0], curve.points[-1]
                before = f"; before {number(first.value)}" if len(curve.points) > 1 else ""
                more = f"[{number(last.low)}, {number(last.high)}]{before}"
                found.append((chart.title.replace("pass@k", "pass@1"), number(last.value), more))
    gains = {each.suite: each.gain for each in evaluations(rows) if each.gain and each.round}
    for gain in gains.values():
        more = f"{100 * gain['low']:.1f} to {100 * gain['high']:.1f} points"
        found.append(("gain in pass@1", f"{100 * gain['value']:+.1f} points", more))
    found += [("newly solved", count(each.num_solved), f"{count(each.num_lost)} lost") for each in flipped]
    num, tokens = rows.one("select count(*), coalesce(sum(tokens), 0)::bigint from sampled")
    if num:
        found.append(("rollouts", count(num), f"{count(tokens)} tokens"))
    seconds = sum(cost.seconds for cost in spent)
    if seconds:
        found.append(("in all stages", duration(seconds), ""))
    return found


def _of_chart(chart: Chart) -> Picture:
    rounds = sorted({point.round for curve in chart.curves for point in curve.points})
    values = [{p.round: band(p.value, p.low, p.high) for p in curve.points} for curve in chart.curves]
    rows = [[str(at), *(by_round.get(at, "-") for by_round in values)] for at in rounds]
    columns = ["round", *(curve.name for curve in chart.curves)]
    title = f"{chart.title} ({chart.unit})" if chart.unit else chart.title
    return Picture(chart.key, title, chart.note, draw_chart(chart), columns, rows)


def _of_map(rates: RateMap) -> Picture:
    return Picture(rates.key, rates.title, rates.note, draw_map(rates), (), ())


def _of_stack(stack: Stack) -> Picture:
    rows = [[str(at), *map(count, counts)] for at, *counts in zip(stack.rounds, *stack.parts.values(), strict=True)]
    return Picture(stack.key, stack.title, stack.note, draw_stack(stack), ["round", *stack.parts], rows)


def _of_costs(spent: Sequence[StageCost]) -> Picture:
    columns = ("stage", "ran", "reused", "unfinished", "seconds", "tokens sampled")
    rows = [
        [stage_name(c), *map(_or_blank, (c.ran, c.reused, c.unfinished)), f"{c.seconds:,.1f}", _or_blank(c.tokens)]
        for c in spent
    ]
    note = "seconds of all attempts; tokens of the rollouts that the run used, sampled by it or reused"
    return Picture("costs-by-stage", "Seconds by stage", note, draw_costs(spent), columns, rows, is_open=True)


def _or_blank(number_of: int) -> str:
    """A count; nothing for 0, of which the table would be full."""
    return count(number_of) if number_of else ""


def main() -> None:
    """Write one report; standard input says how the run ends, as JSON, or null if its journal does."""
    parser = argparse.ArgumentParser(prog="python -m gradus.tasks.inspect.report.writing")
    parser.add_argument("run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", type=Path, default=None, help="where the table of samples is written")
    options = parser.parse_args()
    given = json.load(sys.stdin)
    ending = Ending(**given) if given else None
    try:
        home = Home.from_environment()
        write_report(home, options.run, options.out, lambda _: None, table=options.table, ending=ending)
    except (GradusError, OSError) as error:
        sys.exit(hide(str(in_words(error))))


if __name__ == "__main__":
    main()
