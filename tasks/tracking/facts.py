"""What a journal's events mean for the tracker: which metrics, files and tables follow from them. No MLflow here."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.data.lake.manifest import FILE_NAME
from gradus.tasks.runs.journal import event_lines
from gradus.tasks.runs.profiles import kept_trace
from gradus.tasks.runs.records import Label, MetricRow, Metrics, Report, Sample, StageFinished, StageStarted, Which
from gradus.tasks.tracking.names import metric_name, run_metric_name
from gradus.tasks.tracking.report import markdown, table_md, visible, write_report
from gradus.tasks.tracking.state import Live, State

REPORT_PAGE, SAMPLE_TABLE = "report.html", "samples.json"
"""Files that the end of a training leaves in the folder of its run; the latter as `mlflow.log_table` writes it."""
STAGE_COLUMNS = ("stage", "ran", "reused", "failed", "seconds")


def in_ms(seconds: float) -> int:
    """Return a time in MLflow's unit."""
    return int(seconds * 1000)


def label_of(event: StageStarted) -> Label:
    """Return what a stage's beginning says of the call."""
    return {"stage": event["stage"], "round": event["round"], "purpose": event["purpose"], "output": event["output"]}


def title(call: Which) -> str:
    """How a stage is called in lists.

    >>> title({"stage": "score", "round": 3, "purpose": "eval"})
    'eval-score-3'
    """
    parts = [call["stage"], str(call["round"])]
    return "-".join(parts if call["purpose"] == "train" else [call["purpose"], *parts])


def to_parent(call: Which, seconds: float, metrics: Metrics, state: State) -> None:
    """Put a stage's metrics among those of the whole run, at the step of its round: the curves of the run."""
    for name, value in metrics.items():
        spelled = run_metric_name(call["stage"], call["purpose"], name)
        state.backlog.append((spelled, value, in_ms(seconds), call["round"]))


def points(rows: Sequence[MetricRow], round_: int) -> list[tuple[str, float, int, int]]:
    """The points (name, value, time in ms, step) of an attempt's own curves: its optimiser steps, then its end.

    The end stands at the step of its round, without what the optimiser steps said already.
    """
    said = {name for row in rows if row["step"] is not None for name in row["metrics"]}
    return [
        (metric_name(name), value, in_ms(row["time"]), round_ if row["step"] is None else row["step"])
        for row in rows
        for name, value in row["metrics"].items()
        if row["step"] is not None or name not in said
    ]


def roles_by_artifact(inputs: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Artifact -> the roles that it has: one that has two is one dataset to MLflow."""
    found: dict[str, list[str]] = {}
    for role, refs in inputs.items():
        for ref in refs:
            found.setdefault(ref, []).append(role)
    return found


def shown(sample: Sample, keys: tuple[str, ...]) -> dict[str, str]:
    """Fields of a sample that have a value, as text without hidden characters."""
    return {key: visible(str(sample[key])) for key in keys if sample.get(key)}


def ends(samples: Sequence[Sample], count: int) -> Sequence[Sample]:
    """Return N samples: half from the front (the best), half from the back (the worst)."""
    if count >= len(samples):
        return samples
    front = count - count // 2
    return [*samples[:front], *samples[len(samples) - (count - front) :]]


def write_files(folder: Path, run: Path, artifact: Path, begun: Live, end: StageFinished, report: Report) -> str:
    """Write what a stage attempt shows as files: summary, settings, manifest, samples; return the summary's text.

    `artifact` is the folder that holds the manifest, if there is one; `run` may hold the attempt's profile.
    """
    trace = kept_trace(run, end["attempt"])
    if trace.is_file():
        shutil.copyfile(trace, folder / trace.name)
    label = {key: value for key, value in begun.items() if key != "config"}
    facts = {**label, "status": end["status"], "seconds": end["seconds"], "error": end["error"]}
    known = {key: value for key, value in facts.items() if value not in ("", None)}
    write_report(folder, title(begun), known, {**report, "summary": end["summary"]})
    (folder / "config.json").write_text(json.dumps(begun["config"], indent=1), encoding="utf-8")
    if (artifact / FILE_NAME).exists():
        (folder / FILE_NAME).write_bytes((artifact / FILE_NAME).read_bytes())
    return (folder / "summary.md").read_text(encoding="utf-8")


def run_page(folder: Path, state: State) -> tuple[str, dict[str, int]]:
    """The summary of the present invocation as Markdown, and the sums of its stages.

    It says what each checkpoint that got a name got it for, then what was done, stage by stage.
    """
    rows, counts = stage_table(folder, state)
    events = [event for event, _ in event_lines(folder, state.begun_at, state.offset)]
    named = [event for event in events if event["event"] == "model_alias" and event.get("note")]
    notes = [f"{event['alias']}: {event['note']}" for event in named]
    return "\n\n".join([*map(markdown, notes), table_md(STAGE_COLUMNS, rows)]), counts


def end_files(folder: Path, counts: Mapping[str, int]) -> tuple[list[Path], dict[str, str]]:
    """The files that the end of a training left in its folder, and the tags of its end.

    The tags are the counts, and the one by which MLflow finds a table among the files.
    """
    there = [folder / name for name in (REPORT_PAGE, SAMPLE_TABLE) if (folder / name).is_file()]
    tables = [{"path": path.name, "type": "table"} for path in there if path.name == SAMPLE_TABLE]
    tags = {f"gradus.{name}": str(number) for name, number in counts.items()}
    return there, tags | ({"mlflow.loggedArtifacts": json.dumps(tables)} if tables else {})


def stage_table(folder: Path, state: State) -> tuple[list[tuple[str | float, ...]], dict[str, int]]:
    """What the present invocation did, stage by stage, and the sums.

    A reused stage has no MLflow run of its own: it is counted here and its metrics join the curves of the run.
    """
    stages: dict[str, str] = {}
    table: dict[str, dict[str, float]] = {}
    for event, _ in event_lines(folder, state.begun_at, state.offset):
        match event["event"]:
            case "stage_started":
                stages[event["attempt"]] = event["stage"]
            case "stage_finished" if event["attempt"] in stages:
                row = table.setdefault(stages[event["attempt"]], _nothing())
                row["ran" if event["status"] == "finished" else "failed"] += 1
                row["seconds"] += event["seconds"]
            case "stage_reused":
                table.setdefault(event["stage"], _nothing())["reused"] += 1
            case _:
                continue
    counts = {name: int(sum(row[name] for row in table.values())) for name in STAGE_COLUMNS[1:4]}
    rows = [(name, *(int(row[c]) for c in STAGE_COLUMNS[1:4]), round(row["seconds"], 2)) for name, row in table.items()]
    return rows, counts


def _nothing() -> dict[str, float]:
    return {"ran": 0, "reused": 0, "failed": 0, "seconds": 0.0}
