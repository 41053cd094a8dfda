"""Translation of a journal's events for the tracker: metrics, files and tables that follow. Does not import MLflow."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from gradus.data.lake.manifest import FILE_NAME
from gradus.tasks.config.settings import Prices
from gradus.tasks.formats import csv_cell, markdown, visible
from gradus.tasks.runs.journal import event_lines
from gradus.tasks.runs.records import (
    Label,
    Metrics,
    Report,
    Sample,
    StageFinished,
    StageStarted,
    Summary,
    Which,
)
from gradus.tasks.tracking.metric_table import Mark, is_marked
from gradus.tasks.tracking.names import has_room, is_on_run, kind_of, run_metric_name, shown_name
from gradus.tasks.tracking.notes import headline, numbers_only
from gradus.tasks.tracking.state import Live, State

Point: TypeAlias = tuple[str, float, int, int]
"""A metric's name, its value, its time in ms and its step."""

NOT_FINITE = "total/num_not_finite"
REPORT_PAGE, SAMPLE_TABLE = "report.html", "samples.json"
"""Files that the end of a training leaves in the folder of its run; the latter as `mlflow.log_table` writes it."""
METHODS_TABLE, DIFFERENCES_TABLE = "comparison_methods.json", "comparison_differences.json"
COMPARISON, COMPARISON_PICTURE, PLAN = "comparison.json", "comparison.png", "plan.json"
"""Files that a comparison leaves in the folder of its run: two tables, all its figures, its picture, its plan."""
LABORATORY, LABORATORY_TABLE, LABORATORY_PICTURE = "laboratory.json", "laboratory_methods.json", "laboratory.png"
"""Files that a laboratory leaves there."""
AGREEMENT = "agreement.json"
"""File that an agreement leaves there."""
_TABLES = (SAMPLE_TABLE, METHODS_TABLE, DIFFERENCES_TABLE, LABORATORY_TABLE)
STAGE_COLUMNS = ("stage", "ran", "reused", "failed", "seconds")


def in_ms(seconds: float) -> int:
    """Return a time in MLflow's unit."""
    return int(seconds * 1000)


def label_of(event: StageStarted) -> Label:
    """Return what a stage's beginning says of the call."""
    return {"stage": event["stage"], "round": event["round"], "purpose": event["purpose"], "output": event["output"]}


def title(call: Which) -> str:
    """Return the name of a stage in lists.

    >>> title({"stage": "score", "round": 3, "purpose": "eval"})
    'eval-score-3'
    """
    parts = [call["stage"], str(call["round"])]
    return "-".join(parts if call["purpose"] == "train" else [call["purpose"], *parts])


def to_parent(call: Which, seconds: float, metrics: Metrics, state: State) -> None:
    """Put a stage's metrics among those of the whole run, at the step of its round: the curves of the run."""
    for name, value in metrics.items():
        if math.isfinite(value) and is_on_run(call["stage"], call["purpose"], name):
            spelled = run_metric_name(call["stage"], call["purpose"], name)
            if has_room(spelled, state.others):
                step = 0 if state.ends_only and is_marked(name, Mark.COMPARES) else call["round"]
                _put(name, (spelled, value, in_ms(seconds), step), state)
    if call["stage"] == "evaluate" and kind_of(call["purpose"], "eval/") == "eval":
        _note_figures(metrics, state)


def _put(name: str, point: Point, state: State) -> None:
    """Queue a point. Zeros of quiet metrics are held back until the first non-zero value."""
    spelled, value, time_ms, step = point
    if is_marked(name, Mark.QUIET) and spelled not in state.loud:
        waiting = state.zeros.setdefault(spelled, [])
        if value == 0:
            waiting.append((time_ms, step))
            return
        state.backlog += [(spelled, 0.0, *each) for each in waiting]
        state.loud.append(spelled)
    state.backlog.append(point)


def evaluates_at_its_ends(recipe: object) -> bool:
    """Return whether a recipe evaluates only before the first round and after the last."""
    plan = recipe.get("evaluate") if isinstance(recipe, Mapping) else None
    suites = plan.get("suites", ()) if isinstance(plan, Mapping) else ()
    return bool(suites) and not any(suite.get("every") for suite in suites)


def num_not_finite(metrics: Metrics) -> int:
    """Return how many values are NaN or infinite: MLflow would refuse them, or show them as huge."""
    return sum(not math.isfinite(value) for value in metrics.values())


def _note_figures(metrics: Metrics, state: State) -> None:
    """Keep what an evaluation of the first suite found, for the note; the first one is that of the starting policy."""
    found = {name.rpartition("/")[2]: value for name, value in metrics.items()}
    if "pass_at_1" in found:
        state.figures.setdefault("start", found["pass_at_1"])
    kept = ("pass_at_1", "gain", "gain_ci_low", "gain_ci_high")
    state.figures |= {name: found[name] for name in kept if name in found}


def count_usage(summary: Summary, metrics: Metrics, state: State) -> None:
    """Add what an attempt used to the totals of its run."""
    state.add("total/tokens_sampled", summary.get("tokens_generated", 0))
    state.add("total/tokens_trained", summary.get("tokens_trained", 0))
    state.add("total/skipped_updates", summary.get("skipped_updates", 0))
    state.add("total/cpu_s", metrics.get("perf/cpu_s", 0.0))
    state.add("total/gpu_s", metrics.get("perf/gpu_s", 0.0))


def count_round(call: Which, state: State) -> None:
    """Note that a round has its update."""
    if call["stage"] == "update":
        state.totals["total/rounds"] = max(call["round"], state.totals.get("total/rounds", 0))


def total_points(state: State, prices: Prices, time_ms: int) -> list[Point]:
    """Return the totals of a run, and their cost if there are prices; one that is 0 is left out."""
    used = state.totals
    cost = (used.get("total/cpu_s", 0.0) * prices.cpu_h + used.get("total/gpu_s", 0.0) * prices.gpu_h) / 3600
    known = {name: float(f"{value:.6g}") for name, value in {**used, "total/cost": cost}.items()}
    return [(shown_name(name), value, time_ms, 0) for name, value in known.items() if value]


def points(report: Report, time_s: float) -> list[Point]:
    """Return the points of an attempt's own curves: its optimiser steps, then its end.

    The end stands at step 0, where MLflow draws a bar and not a line of one dot, without what the optimiser steps said
    already. What is not finite is left out.
    """
    steps = report.get("steps", [])
    said = {name for step in steps for name in step}
    ended = {name: value for name, value in report.get("metrics", {}).items() if name not in said}
    return [
        (shown_name(name), value, in_ms(time_s), step)
        for step, metrics in (*enumerate(steps), (0, ended))
        for name, value in metrics.items()
        if math.isfinite(value)
    ]


def roles_by_artifact(inputs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Artifact -> the roles that it has: one that has two is one dataset to MLflow."""
    found: dict[str, list[str]] = {}
    for role, refs in inputs.items():
        for ref in refs:
            found.setdefault(ref, []).append(role)
    return found


def shown(sample: Sample, keys: tuple[str, ...]) -> dict[str, dict[str, list[str]]]:
    """Return the fields of a sample that have a value, as lines without hidden characters.

    Each is an object, which MLflow shows as JSON; it would render a text as Markdown and load the pictures in it.
    """
    return {key: {"lines": visible(str(sample[key])).split("\n")} for key in keys if sample.get(key)}


def ends(samples: Sequence[Sample], count: int) -> Sequence[Sample]:
    """Return N samples: half from the front (the best), half from the back (the worst)."""
    if count >= len(samples):
        return samples
    front = count - count // 2
    return [*samples[:front], *samples[len(samples) - (count - front) :]]


def write_files(folder: Path, artifact: Path, begun: Live, end: StageFinished, report: Report) -> None:
    """Write what a stage attempt shows as files: summary, settings, manifest, samples.

    `artifact` is the folder that holds the manifest, if there is one.
    """
    label = {key: value for key, value in begun.items() if key not in ("config", "inputs")}
    error = {"error": headline(end["error"])} if end["error"] else {}
    facts = {**label, "status": end["status"], "seconds": end["seconds"], **error}
    # The counts that are texts may quote a policy: they are in the journal, and samples in sample.html.
    counts = cast("Summary", numbers_only(end["summary"]))
    write_report(folder, title(begun), facts, {**report, "summary": counts})
    (folder / "config.json").write_text(json.dumps(begun["config"], indent=1), encoding="utf-8")
    if (artifact / FILE_NAME).exists():
        (folder / FILE_NAME).write_bytes((artifact / FILE_NAME).read_bytes())


def run_page(folder: Path, state: State) -> tuple[str, dict[str, int]]:
    """The summary of a run as Markdown, and the sums of its stages.

    It says what each checkpoint that got a name in the last command got it for, then what was done, stage by stage.
    """
    rows, counts = stage_table(folder, state.offset)
    events = [event for event, _ in event_lines(folder, state.begun_at, state.offset)]
    named = [event for event in events if event["event"] == "model_alias" and event.get("note")]
    notes = [f"{event['alias']}: {event['note']}" for event in named]
    return "\n\n".join([*map(markdown, notes), table_md(STAGE_COLUMNS, rows)]), counts


def end_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files that the end of a command left in its folder, and the tag by which MLflow finds tables among them."""
    names = (REPORT_PAGE, *_TABLES, COMPARISON, COMPARISON_PICTURE, PLAN, LABORATORY, LABORATORY_PICTURE, AGREEMENT)
    there = [folder / name for name in names if (folder / name).is_file()]
    tables = [{"path": path.name, "type": "table"} for path in there if path.name in _TABLES]
    return there, {"mlflow.loggedArtifacts": json.dumps(tables)} if tables else {}


def stage_table(folder: Path, end: int) -> tuple[list[tuple[str | float, ...]], dict[str, int]]:
    """Return the table of stages that the commands of a run ran up to a place in its journal, and the sums.

    A reused stage has no MLflow run of its own: it is counted here, once, unless the run computed it before; and its
    metrics join the curves of the run.
    """
    stages: dict[str, str] = {}
    had: set[str] = set()
    table: dict[str, dict[str, float]] = {}
    for event, _ in event_lines(folder, 0, end):
        match event["event"]:
            case "stage_started":
                stages[event["attempt"]] = event["stage"]
                had.add(event["output"])
            case "stage_finished" if event["attempt"] in stages:
                row = table.setdefault(stages[event["attempt"]], _nothing())
                row["ran" if event["status"] == "finished" else "failed"] += 1
                row["seconds"] += event["seconds"]
            case "stage_reused" if event["output"] not in had:
                table.setdefault(event["stage"], _nothing())["reused"] += 1
                had.add(event["output"])
            case _:
                continue
    counts = {name: int(sum(row[name] for row in table.values())) for name in STAGE_COLUMNS[1:4]}
    rows = [(name, *(int(row[c]) for c in STAGE_COLUMNS[1:4]), round(row["seconds"], 2)) for name, row in table.items()]
    return rows, counts


def _nothing() -> dict[str, float]:
    return {"ran": 0, "reused": 0, "failed": 0, "seconds": 0.0}


MAX_ROWS = 64
_PAGE = Path(__file__).with_name("sample.html")


def summary_md(title: str, facts: Mapping[str, object], report: Report) -> str:
    """A page of Markdown: what the attempt was, how it ended, its counts and its metrics."""
    parts = [f"# {markdown(title)}", _markdown_table(("", ""), facts.items())]
    for heading, values in (("Counts", report.get("summary")), ("Metrics", report.get("metrics"))):
        if values:
            parts.append(f"## {heading}\n\n{_markdown_table(('name', 'value'), values.items())}")
    return "\n\n".join(parts) + "\n"


def table_md(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table of rows."""
    lines = [columns, ["---"] * len(columns), *([markdown(_text(cell)) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def head_csv(rows: Sequence[Sample]) -> str:
    """The rows as CSV; a text that a spreadsheet would compute gets a leading apostrophe."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(visible(name)) for name in columns])
    for row in rows[:MAX_ROWS]:
        writer.writerow([csv_cell(visible(_text(row.get(name)))) for name in columns])
    return out.getvalue()


def sample_html(title: str, rows: Sequence[Sample]) -> str:
    """A page of samples that runs nothing and loads nothing, whatever the samples say."""
    from jinja2 import Environment  # noqa: PLC0415 - the command line starts without it

    page = Environment(autoescape=True).from_string(_PAGE.read_text(encoding="utf-8"))
    shown = [
        {
            "kind": row.get("outcome") if row.get("outcome") in ("correct", "wrong") else "",
            "cells": [(visible(str(name), 200), visible(_text(value))) for name, value in row.items()],
        }
        for row in rows[:MAX_ROWS]
    ]
    return page.render(title=visible(title, 200), rows=shown, total=len(rows))


def write_report(folder: Path, title: str, facts: Mapping[str, object], report: Report) -> None:
    """Write summary.md, and head.csv and sample.html where there are samples, into a folder."""
    (folder / "summary.md").write_text(summary_md(title, facts, report), encoding="utf-8")
    samples = report.get("samples")
    if samples:
        (folder / "head.csv").write_text(head_csv(samples), encoding="utf-8")
        (folder / "sample.html").write_text(sample_html(title, samples), encoding="utf-8")


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _markdown_table(columns: tuple[str, str], rows: Iterable[tuple[str, object]]) -> str:
    return table_md(columns, [(str(name), value) for name, value in rows])
