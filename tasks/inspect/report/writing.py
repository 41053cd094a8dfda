"""Write a run's report: `report.html`, one file that loads nothing and runs nothing, and its pictures as PNG.

write_report(Home.from_environment(), "demo-1a2b3c4d", Path("report.html"), print)

echo null | python -m gradus.tasks.inspect.report.writing RUN PAGE TABLE    # in a process of its own (see at_end.py)

Its texts are few: problems that changed most, groups of unequal rewards, what evaluations newly solved and lost, and
rows on which the rewards of `gradus agree` and `gradus amend` disagree, what each read side by side.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup, escape

from gradus.data.errors import CorruptArtifactError, GradusError, OnDamage, UsageError, in_words, refuse
from gradus.data.files import replace_file
from gradus.data.records import Json
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import MAX_CELL_CHARS, brief, count, duration, interval, more, number, points, share, visible
from gradus.tasks.inspect.agreement.pairs import Cell, Flip, Pair
from gradus.tasks.inspect.groups import KEY, Group, GroupKey, Rollout, begun, read_groups, why
from gradus.tasks.inspect.remarks import remarks
from gradus.tasks.inspect.report.figures import Figure, evaluations, figures, svg, write_png
from gradus.tasks.inspect.sql_views import RunRows, open_run
from gradus.tasks.inspect.token_pieces import doubt
from gradus.tasks.runs.run_settings import read_settings
from gradus.tasks.tracking.facts import AGREEMENT

HERE = Path(__file__).parent
TABLES = ("metrics", "stages", "evaluations", "help")
"""The tables that a report reads beside `sampled`."""
SECTIONS = ("charts", "maps", "hints", "costs")
Page = Mapping[str, Any]
"""Everything that the page says, by the names of the template."""
MAX_CHANGED = 6
"""Problems of which the first and the last group are shown."""
MAX_SPREAD = 8
"""Groups of the largest reward variance."""
MAX_FLIPPED = 12
"""Problems newly solved, and newly lost, with their texts."""
MAX_EVALUATED = 48
"""Evaluated problems, the first by name, in the table of samples."""
MAX_ROLLOUTS = 8
COLUMNS = (
    *("problem_id", "purpose", "round", "place", "question", "answer", "hint", "completion"),
    *("reward", "parts", "advantage", "tokens", "verdict"),
)
_MAX_CHARS = 2000


class Shown(NamedTuple):
    """Groups that belong together, and why they are shown."""

    title: str
    why: str
    groups: Sequence[Group]


Flips = Mapping[str, Any]
"""The problems of a suite that no rollout solved in a round and one did in a later one, or the other way round.

`suite`, `first_round`, `last_round`, `num_solved` and `num_lost`; `shown` are some of them: whether newly solved, and
the group of each round.
"""


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

    `ending` is status and error, if its journal has none yet. UsageError if there is no such run or no such folder.
    """
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", hint="make it, or give another --out")
    with open_run(home, run, say, TABLES, on_damage) as rows:
        page = read_page(rows, ending)
        if table is not None:
            replace_file(table, sample_table(evaluated_groups(rows), page["groups"]))
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
    drawn, flipped = figures(rows), flips(rows)
    return {
        **drawn,
        "charts": [each for each in drawn["charts"] if not each.is_zero],
        "zero": [each.title for each in drawn["charts"] if each.is_zero],
        "flips": flipped,
        "groups": chosen_groups(rows),
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


def chosen_groups(rows: RunRows) -> list[Shown]:
    """Return the groups that tell most of a run, each once: of problems that changed, then of unequal rewards."""
    changed = rows.ask(
        """
        select change, earliest, latest from (
            select any_value(change) as change, arg_min(each, (round, purpose, group_id)) as earliest,
                arg_min(each, (-round, purpose, group_id)) as latest
            from sampled each where bare and purpose not like 'eval%' and correct is not null group by problem_id
        ) where earliest.round < latest.round and change <> 0 order by abs(change) desc, latest.problem_id limit ?
        """,
        [MAX_CHANGED],
    )
    unequal = rows.ask(
        f"""
        select {KEY}, var_pop(reward) as variance from sampled where use is null and purpose not like 'eval%'
        group by {KEY} having count(reward) > 1 and variance > 0
        qualify row_number() over (partition by problem_id, purpose order by variance desc, round desc) = 1
        order by variance desc, round desc, problem_id limit ?
        """,  # noqa: S608 - ours
        [MAX_SPREAD + 2 * len(changed)],
    )
    ends = [GroupKey.of(each) for _, *both in changed for each in both]
    spread = [(key, variance) for *of, variance in unequal if (key := GroupKey(*of)) not in ends][:MAX_SPREAD]
    groups = iter(read_groups(rows, [*ends, *(key for key, _ in spread)], MAX_ROLLOUTS))
    found: list[Shown] = []
    for moved, first, last in changed:
        reason = f"pass rate {moved:+.2f} from round {first['round']} to round {last['round']}"
        found.append(Shown(first["problem_id"], reason, [next(groups), next(groups)]))
    for key, variance in spread:
        reason = f"reward variance {variance:.3g} in round {key.round} ({key.purpose})"
        found.append(Shown(key.problem_id, reason, [next(groups)]))
    return found


def evaluated_groups(rows: RunRows) -> list[Group]:
    """Return the groups of the last evaluation, the best and the worst completion of each: the same in every run."""
    found = rows.ask(
        f"""
        select distinct {KEY} from sampled
        where purpose = 'eval' and round = (select max(round) from sampled where purpose = 'eval')
        order by problem_id, group_id limit ?
        """,  # noqa: S608 - ours
        [MAX_EVALUATED],
    )
    return read_groups(rows, [GroupKey(*row) for row in found], 2)


def flips(rows: RunRows) -> list[Flips]:
    """Return for each suite what was newly solved and lost between its first and its last evaluation."""
    artifacts: dict[str, dict[int, str]] = {}
    for at, artifact, each in evaluations(rows):
        artifacts.setdefault(each.get("suite", ""), {})[at] = artifact
    return [_flips_of(rows, suite, found) for suite, found in artifacts.items() if len(found) > 1]


def _flips_of(rows: RunRows, suite: str, artifacts: dict[int, str]) -> Flips:
    first, last = min(artifacts), max(artifacts)
    found = rows.ask(
        """
        with flipped as (
            select problem_id, later.k > 0 as solved, abs(later.k / later.n - earlier.k / earlier.n) as change
            from evaluations earlier join evaluations later using (problem_id)
            where earlier.artifact = ? and later.artifact = ? and earlier.n > 0 and later.n > 0
                and (earlier.k = 0) <> (later.k = 0)
        ),
        groups as (
            select problem_id, round, arg_min(each, (purpose <> ?, purpose, group_id)) as group_of
            from sampled each where purpose like 'eval%' group by all
        )
        select solved, earlier.group_of, later.group_of from flipped
        join groups earlier on earlier.problem_id = flipped.problem_id and earlier.round = ?
        join groups later on later.problem_id = flipped.problem_id and later.round = ?
        order by change desc, flipped.problem_id
        """,
        [artifacts[first], artifacts[last], f"eval-{suite}", first, last],
    )
    chosen = [row for wanted in (True, False) for row in [r for r in found if r[0] is wanted][:MAX_FLIPPED]]
    groups = iter(read_groups(rows, [GroupKey.of(each) for _, *both in chosen for each in both], 1))
    num_solved = sum(row[0] for row in found)
    return {
        "suite": suite,
        "first_round": first,
        "last_round": last,
        "num_solved": num_solved,
        "num_lost": len(found) - num_solved,
        "shown": [(solved, next(groups), next(groups)) for solved, *_ in chosen],
    }


def sample_table(evaluated: Iterable[Group], chosen: Sequence[Shown]) -> str:
    """Return the table as JSON: evaluated problems, then the groups that the report shows.

    It is as `mlflow.log_table` writes it, with one name and the same columns in every training, since MLflow's page of
    runs puts such tables side by side; the evaluated problems, first, are the same in every run of a recipe.
    """
    groups = [*evaluated, *(group for shown in chosen for group in shown.groups)]
    rows = [_row(group, place, each) for group in groups for place, each in enumerate(group.rollouts)]
    return json.dumps({"columns": COLUMNS, "data": rows}, allow_nan=False)


def _row(group: Group, place: int, rollout: Rollout) -> list[Json]:
    """A completion; the best and the worst of its group by that name, the others by their number."""
    last = group.num_rollouts > 1 and place == 1
    texts = (group.question, group.answer, group.hint_text, rollout["completion"])
    return [
        visible(group.key.problem_id, 200),
        visible(group.key.purpose, 60),
        group.key.round,
        "worst" if last else "best" if place == 0 else str(place + 1),
        *(visible(text or "", _MAX_CHARS) for text in texts),
        rollout["reward"],
        ", ".join(f"{visible(name, 60)} {value}" for name, value in rollout["parts"].items()),
        rollout["advantage"],
        rollout["tokens"],
        why(rollout, group.answer),
    ]


def read_disagreements(folder: Path, on_damage: OnDamage) -> list[Mapping[str, Any]]:
    """Return each pair of the agreement in a run's folder as the page shows it; none if the run is no agreement."""
    path = folder / AGREEMENT
    try:
        return [_of_pair(pair) for pair in json.loads(path.read_bytes())["pairs"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        on_damage(CorruptArtifactError(f"{path} is no agreement of rewards", hint="run `gradus agree` again"))
        return []


def _of_pair(pair: Pair) -> Mapping[str, Any]:
    names = first, second = str(pair["first"]), str(pair["second"])
    head = ["rows of", "rows", "both right", f"{first} alone", f"{second} alone", "agreement", "kappa"]
    updates = [
        f"{each['run']}: every update would be the same"
        if each["round"] is None
        else f"{each['run']}: the first update that differs is that of round {each['round']}"
        for each in pair["divergences"]
    ]
    table = [head, *map(_line, pair["cells"])]
    flips = [_flip(each, names) for each in pair["flips"]]
    return {"names": names, "num_flips": int(pair["num_flips"]), "table": table, "updates": updates, "flips": flips}


def _line(cell: Cell) -> list[str]:
    counts = (str(cell[name]) for name in ("rows", "both_right", "only_first", "only_second"))
    kappa = "-" if cell["kappa"] is None else interval(cell["kappa"], number)
    return [f"{cell['by']} {cell['value']}".strip(), *counts, share(cell["agreement"]), kappa]


def _flip(flip: Flip, names: tuple[str, str]) -> Mapping[str, Any]:
    read = zip(names, (flip["first"], flip["second"]), strict=True)
    return {
        "title": f"{flip['run']}, round {flip['round']}: {flip['right']} says right",
        "rollout_id": str(flip["rollout_id"]),
        "completion": str(flip["completion"]),
        "sides": [(name, flip["right"] == name, str(text or "nothing")) for name, text in read],
    }


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
