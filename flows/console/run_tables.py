"""The tables of verbs about runs: train, runs, show, prune, restore.

Those of `gradus runs` and `gradus show` are coloured on a terminal, have one line for each row, and never cut a name.
"""

import shlex
from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from gradus.data.records import Figure
from gradus.flows.console.answers import Curve, Deleted, Freed, FreedCheckpoint, Restored, SuiteFigures, TrainAnswer
from gradus.flows.console.output import View, fields, line, notes, safe, table
from gradus.tasks.formats import count, duration, interval, points, rate, short, size, terminal_safe
from gradus.tasks.runs.listing import RunList, RunStory
from gradus.tasks.runs.records import DomainFigures, Versus, sentence

REASONS = 5
"""For how many runs, newest first, `gradus runs` says why they did not finish."""
STYLES = {"finished": "green", "reused": "dim", "running": "blue", "failed": "red"}
OTHERWISE = "yellow"
NUMBERS = ("round", "seconds", "gain", "size")
_UNBOUNDED = 10_000


def render_runs(result: RunList) -> None:
    """One line for each run, then why the newest unfinished ones did not finish, then bytes."""
    columns = ("run", "verb", "status", "started", "gain", "size", "stages", "seconds")
    rows = [
        (
            run["run"],
            run["verb"],
            run["status"],
            _when(run["started"]),
            points(run["gain"]),
            size(run["bytes"]),
            f"{run['stages']} (+{run['reused']})" if run["reused"] else str(run["stages"]),
            f"{run['seconds']:.0f}",
        )
        for run in result["runs"]
    ]
    _print(columns, rows, ("seconds", "stages", "verb"))
    for run in [r for r in result["runs"] if r["error"]][:REASONS]:
        line(f"{run['run']}: {run['error']}")
    line(_sizes(result))


def render_run_story(run: RunStory) -> None:
    """Print the status of the run and its reason, one line for each stage attempt, what failed in it, its bytes."""
    error = safe(f": {run['error']}" if run["error"] else "")
    View().print(safe(f"{run['run']}: "), _status(run["status"]), error, sep="", soft_wrap=True)
    columns = ("stage", "round", "purpose", "status", "seconds", "size", "output")
    rows = [
        (
            row["stage"],
            str(row["round"]),
            row["purpose"],
            "pruned" if row.get("pruned") and row["status"] == "finished" else row["status"],
            f"{row['seconds']:.1f}",
            size(row.get("bytes", 0)),
            row["output"],
        )
        for row in run["attempts"]
    ]
    _print(columns, rows, ("output", "size", "seconds"))
    for row in run["attempts"]:
        if row["error"] and row["error"] != run["error"]:
            line(f"{row['stage']} of round {row['round']} ({row['status']}): {row['error']}")
    for account in run["resumed"]:
        line(sentence(account))
    if run["status"] in ("failed", "killed") and run["logs"]:
        line(f"logs: {run['logs']}")
    line(_sizes(run))


def render_run(result: TrainAnswer) -> None:
    """The end of a training run: accuracy by suite, newly solved problems, time per stage, where to look."""
    for name, figures in result["suites"].items():
        _suite(name, figures, chosen=result["best"] != result["policy"])
    notes(result["remarks"])
    stages = [(name, s["ran"], s["reused"], f"{s['seconds']:.1f}") for name, s in result["stages"].items()]
    table("stages", ("stage", "ran", "reused", "seconds"), stages)
    if "versus" in result["after"]:
        _gain(result["after"]["versus"])
    facts = ("run", "rounds", "updates", "tokens_generated", "tokens_trained", "seconds", "out")
    fields({key: result[key] for key in facts})
    run = shlex.quote(result["run"])
    reading = f"`gradus browse {run}`, `gradus report {run}`"
    line(f"look: `gradus ui` (Prefect, MLflow), {reading}, `gradus sql 'select ...'`")


def render_curve(curve: Curve) -> None:
    """A line for each evaluation, then the numbers of the sigmoid."""
    rows = [(at["round"], count(at["tokens"]), rate(at["pass_at_1"]), rate(at["fitted"])) for at in curve["points"]]
    table(f"pass@1 on {curve['suite']}", ("round", "tokens", "pass@1", "fitted"), rows)
    fields(
        {
            "run": curve["run"],
            "start": rate(curve["start"]),
            "asymptote": rate(curve["asymptote"]),
            "midpoint_tokens": count(curve["midpoint_tokens"]),
            "exponent": f"{curve['exponent']:.2f}",
            "rmse": f"{curve['rmse']:.4f}",
        }
    )


def render_freed(result: Freed) -> None:
    """A line for each checkpoint, then the sum."""
    rows = [(c["round"], short(c["checkpoint"]), c["lost"], size(c["bytes"]), _back(c)) for c in result["checkpoints"]]
    if rows:
        table("pruned" if result["done"] else "to be pruned", ("round", "checkpoint", "loses", "size", "back by"), rows)
    if result["spared"]:
        line(f"{len(result['spared'])} checkpoints stay because other runs have them too")
    verb = "freed" if result["done"] else "would be freed"
    line(f"{size(result['bytes'])} {verb}" if rows else "there is nothing to prune")


def render_deleted(result: Deleted) -> None:
    """Print what is deleted and what stays."""
    verb = "deleted" if result["done"] else "to be deleted"
    counts = ", ".join(f"{count} {table}" for table, count in result["artifacts"].items()) or "no artifacts"
    line(f"{verb}: run {result['run']} with its journal, logs and rows in MLflow; {counts}; {size(result['bytes'])}")
    if result["staying"]:
        line(f"{result['staying']} of its artifacts stay because other runs have them too")


def render_restored(result: Restored) -> None:
    """One sentence."""
    if result["done"]:
        line(f"restored {result['checkpoint']}; its weights have their original SHA-256")
    elif not result["updates"]:
        line(f"{result['checkpoint']} is there, weights and train state")
    else:
        line(f"{result['checkpoint']} takes {_updates(result)}, about {duration(result['seconds'], 0)}")


def _sizes(result: RunList | RunStory) -> str:
    named = ", ".join(f"{table} {size(num)}" for table, num in result["bytes_by_table"].items() if num)
    return f"{size(result['bytes'])} of artifacts: {named}" if named else "no artifacts"


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]], last: Sequence[str]) -> None:
    """Print a table that fits: columns of `last` are left out in order, or shortened; a terminal wraps the rest."""
    console, kept = View(), list(columns)
    cells = [dict(zip(columns, row, strict=True)) for row in rows]
    for spared in (*last, ""):
        view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for name in kept:
            view.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
        for row in cells:
            view.add_row(*(_status(row[name]) if name == "status" else safe(row[name]) for name in kept))
        width = console.measure(view, options=console.options.update(width=_UNBOUNDED)).maximum
        if width <= console.width or not spared:
            console.width = max(width, console.width)
            console.print(view)
            return
        if spared == "output":
            cells = [{**row, spared: short(row[spared])} for row in cells]
        else:
            kept.remove(spared)


def _status(status: str) -> Text:
    return Text(terminal_safe(status), STYLES.get(status, OTHERWISE))


def _when(seconds: float | None) -> str:
    """Local time of day; for another year than this one, the date alone."""
    if seconds is None:
        return "-"
    began, now = datetime.fromtimestamp(seconds).astimezone(), datetime.now().astimezone()
    return f"{began:%d %b %H:%M}" if began.year == now.year else f"{began:%Y-%m-%d}"


def _suite(name: str, figures: SuiteFigures, *, chosen: bool) -> None:
    """Print pass@1 of a suite before and after training, and of the best checkpoint if that is another one."""
    shown = {"before": figures["before"], "after": figures["after"], **({"best": figures["best"]} if chosen else {})}
    domains = sorted({domain for each in shown.values() for domain in each["per_domain"]})
    rows = [(d, *(_accuracy(each["per_domain"].get(d)) for each in shown.values())) for d in domains]
    rows.append(("all", *(_accuracy(each["pass_at"].get("1")) for each in shown.values())))
    if any(each["unjudged"] for each in shown.values()):
        rows.append(("judged rollouts", *(f"{each['judged']} of {each['rollouts']}" for each in shown.values())))
    table(f"pass@1 on {name} (95 % interval)", ("domain", *shown), rows)


def _gain(versus: Versus) -> None:
    if "gain" not in versus:
        return
    value, low, high = (points(versus["gain"][name], sign=False) for name in ("value", "low", "high"))
    line(f"gain in pass@1: {value} points (95 % interval {low} to {high})")
    line(
        f"{versus['newly_solved']} problems that no rollout solved at the start are solved now, "
        f"{versus['newly_lost']} the other way round (of {versus['problems']})"
    )


def _accuracy(cell: Figure | DomainFigures | None) -> str:
    if not cell:
        return "-"
    value = cell["value"] if "value" in cell else cell["pass_at_1"]
    return interval({"value": value, "low": cell["low"], "high": cell["high"]})


def _back(checkpoint: FreedCheckpoint) -> str:
    if not checkpoint["repeats"]:
        return "cannot be restored: its update is not deterministic"
    return f"{_updates(checkpoint)}, {duration(checkpoint['seconds'], 0)}"


def _updates(of: FreedCheckpoint | Restored) -> str:
    return f"{of['updates']} update{'s' * (of['updates'] != 1)}"
