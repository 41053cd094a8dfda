"""Write a run's report: `report.html`, one file that loads nothing and runs nothing, and its pictures as PNG.

write_report(Home.from_environment(), "demo-1a2b3c4d", Path("report.html"), print)

echo null | python -m gradus.tasks.inspect.report.writing RUN PAGE TABLE    # in a process of its own (see at_end.py)
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from gradus.data.errors import GradusError, OnDamage, UsageError, in_words, refuse
from gradus.data.files import replace_file
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import MAX_CELL_CHARS, brief, count, duration, more, number, points, visible
from gradus.tasks.inspect.groups import Rollout, begun, why
from gradus.tasks.inspect.remarks import remarks
from gradus.tasks.inspect.report.choices import Flips, chosen_groups, evaluated_groups, flips, sample_table
from gradus.tasks.inspect.report.figures import Figure, evaluations, figures
from gradus.tasks.inspect.report.pictures import svg, write_png
from gradus.tasks.inspect.report.verdicts import read_disagreements
from gradus.tasks.inspect.run_rows import RunRows, open_run
from gradus.tasks.inspect.token_pieces import Tokenizers, doubt
from gradus.tasks.runs.journal import read_settings

HERE = Path(__file__).parent
TABLES = ("metrics", "stages", "evaluations", "help")
"""The tables that a report reads beside `sampled`."""
SECTIONS = ("charts", "maps", "hints", "costs")
"""Sections of figures."""
Page = Mapping[str, Any]
"""Everything that the page says, by the names of the template."""


def write_report(
    home: Home,
    run: str,
    out: Path,
    say: Callable[[str], None],
    *,
    pictures: Path | None = None,
    table: Path | None = None,
    ending: Mapping[str, str] | None = None,
    on_damage: OnDamage = refuse,
) -> list[Path]:
    """Write the report of a run, its pictures as PNG into a folder, and its table of samples; return the files.

    `ending` is its status and its error, if its journal does not say so yet. Raise UsageError if there is no such run
    or no such folder.
    """
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", hint="make it, or give another --out")
    with open_run(home, run, say, TABLES, on_damage) as rows:
        page = read_page(rows, ending)
        if table is not None:
            samples = sample_table(evaluated_groups(rows, Tokenizers(rows.store, rows.run.on_damage)), page["groups"])
            replace_file(table, samples)
    replace_file(out, render(page))
    drawn: dict[Path, Figure] = {}
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        drawn = {pictures / f"{each.key}.png": each for section in SECTIONS for each in page[section]}
    for path, each in drawn.items():
        write_png(each, path)
    return [out, *([table] if table else []), *drawn]


def read_page(rows: RunRows, ending: Mapping[str, str] | None = None) -> Page:
    """Return what the report of a run says."""
    tokenizers = Tokenizers(rows.store, rows.run.on_damage)
    drawn, flipped = figures(rows), flips(rows, tokenizers)
    return {
        **drawn,
        "charts": [each for each in drawn["charts"] if not each.is_zero],
        "zero": [each.title for each in drawn["charts"] if each.is_zero],
        "flips": flipped,
        "groups": chosen_groups(rows, tokenizers),
        "verdicts": read_disagreements(rows.run.folder, rows.run.on_damage),
        "run": rows.run.name,
        "story": _story(rows, ending),
        "settings": _settings(rows),
        "num_rollouts": rows.one("select count(*) from sampled")[0],
        "cards": list(_cards(rows, drawn, flipped)),
        "remarks": remarks(rows.store, rows.lineage.current(rows.run)),
    }


def render(page: Page) -> str:
    """Return the page as HTML; every text in it is escaped."""
    environment = Environment(autoescape=True, trim_blocks=True)
    every: tuple[Callable[..., str], ...] = (number, count, brief, coloured, begun, why, svg)
    named: dict[str, Callable[..., str]] = {"shown": visible, **{each.__name__: each for each in every}}
    environment.filters.update(named)
    css = Markup((HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - ours
    return environment.from_string((HERE / "page.html").read_text(encoding="utf-8")).render(page=page, css=css).lstrip()


def coloured(rollout: Rollout) -> Markup:
    """Return a completion as HTML, its tokens coloured by their probability if that is known."""
    if rollout["pieces"] is None:
        return escape(visible(rollout["completion"]))
    found, left = list[str](), MAX_CELL_CHARS
    for piece, logprob in rollout["pieces"]:
        text = escape(visible(piece[: max(0, left)]))
        kind, title = ("ins", "inserted") if logprob is None else (f"u{doubt(logprob)}", f"{logprob:.2f}")
        found.append(f'<span class="{kind}" title="{title}">{text}</span>' if text and kind != "u0" else text)
        left -= len(piece)
    return Markup("".join([*found, more(rollout["completion"], MAX_CELL_CHARS)]))  # noqa: S704 - escaped above


def _story(rows: RunRows, ending: Mapping[str, str] | None) -> str:
    """Return the verb, beginning and end of the run, in a sentence."""
    brief = rows.run.brief
    status, error = ((ending or brief)[name] for name in ("status", "error"))
    began = brief["started"]
    when = f", begun {datetime.fromtimestamp(began).astimezone():%d %b %Y %H:%M}" if began else ""
    because = f": {hide(error)}" if error else ""
    return f"gradus {brief['verb']}{when}: {status}{because}."


def _settings(rows: RunRows) -> str:
    settings = read_settings(rows.run.folder, rows.run.on_damage)
    recipe: Mapping[str, object] = settings.get("recipe", {})
    facts = {"recipe": recipe.get("name"), "rounds": recipe.get("rounds"), "seed": settings.get("seed")}
    return "; ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _cards(
    rows: RunRows, drawn: Mapping[str, Sequence[Figure]], flipped: Sequence[Flips]
) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and a second line of each figure at the top of the page."""
    for chart in drawn["charts"]:
        if chart.key.startswith("pass-at-k") and "pass@1" in chart.frame:
            rounds = list(chart.frame["pass@1"].values())
            value, low, high = rounds[-1]
            before = f"; before {number(rounds[0][0])}" if len(rounds) > 1 else ""
            yield chart.title.replace("pass@k", "pass@1"), number(value), f"[{number(low)}, {number(high)}]{before}"
    gains = {each.get("suite"): each.get("versus", {}).get("gain") for at, _, each in evaluations(rows) if at}
    for gain in filter(None, gains.values()):
        low, high = (points(gain[end], sign=False) for end in ("low", "high"))
        yield "gain in pass@1", f"{points(gain['value'])} points", f"{low} to {high} points"
    for each in flipped:
        yield "newly solved", count(each["num_solved"]), f"{count(each['num_lost'])} lost"
    num, tokens = rows.one("select count(*), coalesce(sum(tokens), 0)::bigint from sampled")
    if num:
        yield "rollouts", count(num), f"{count(tokens)} tokens"
    for spent in drawn["costs"]:
        yield "in all stages", duration(sum(stage[0][0] for stage in spent.frame.values())), ""


def main() -> None:
    """Write a page and a table of samples; standard input holds the end of the run as JSON, or null."""
    run, out, table = sys.argv[1:]
    try:
        home, ending = Home.from_environment(), json.load(sys.stdin)
        write_report(home, run, Path(out), lambda _: None, table=Path(table), ending=ending)
    except (GradusError, OSError) as error:
        sys.exit(hide(str(in_words(error))))


if __name__ == "__main__":
    main()
