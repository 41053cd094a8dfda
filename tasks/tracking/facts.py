"""Translation of a journal's events for the tracker: metrics, tables and files. Does not import MLflow."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.data.lake.manifest import FILE_NAME
from gradus.tasks.formats import visible
from gradus.tasks.runs.records import Report, Sample, StageStarted, Which
from gradus.tasks.tracking.fold import Point, in_ms
from gradus.tasks.tracking.names import shown_name

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
_FILES = (REPORT_PAGE, *_TABLES, COMPARISON, COMPARISON_PICTURE, PLAN, LABORATORY, LABORATORY_PICTURE, AGREEMENT)
MAX_ROWS = 64


def title(call: Which) -> str:
    """Return the name of a stage in lists.

    >>> title({"stage": "score", "round": 3, "purpose": "eval"})
    'eval-score-3'
    """
    parts = [call["stage"], str(call["round"])]
    return "-".join(parts if call["purpose"] == "train" else [call["purpose"], *parts])


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


def write_files(folder: Path, artifact: Path, call: StageStarted, samples: Sequence[Sample]) -> None:
    """Write what a stage attempt shows as files: settings, manifest, samples.

    `artifact` is the folder that holds the manifest, if there is one.
    """
    (folder / "config.json").write_text(json.dumps(call["config"], indent=1), encoding="utf-8")
    if (artifact / FILE_NAME).exists():
        (folder / FILE_NAME).write_bytes((artifact / FILE_NAME).read_bytes())
    if samples:
        (folder / SAMPLE_TABLE).write_text(sample_table(samples), encoding="utf-8")


def sample_table(samples: Sequence[Sample]) -> str:
    """Return samples as `mlflow.log_table` writes a table, texts without hidden characters."""
    columns = list(dict.fromkeys(name for row in samples for name in row))
    data = [[_cell(row.get(name)) for name in columns] for row in samples[:MAX_ROWS]]
    return json.dumps({"columns": [visible(name, 200) for name in columns], "data": data})


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return visible(value if isinstance(value, str) else json.dumps(value, default=str))


def end_files(folder: Path) -> list[Path]:
    """The files that the end of a command left in its folder."""
    return [folder / name for name in _FILES if (folder / name).is_file()]


def tables_tag(files: Sequence[Path]) -> dict[str, str]:
    """Return the tag by which MLflow finds tables among the files of a run."""
    tables = [{"path": path.name, "type": "table"} for path in files if path.name in _TABLES]
    return {"mlflow.loggedArtifacts": json.dumps(tables)} if tables else {}
