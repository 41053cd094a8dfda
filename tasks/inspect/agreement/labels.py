"""Labels of the user: a file with a line for each rollout, `correct` true or false, null without a label.

{"rollout_id": "...", "correct": null, "question": "...", "answer": "34", "completion": "..."}
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradus.data.errors import BadInputError
from gradus.data.files import replace_file

LABELS = ".jsonl"
"""The end of its name."""
HOW = 'write true, false or null after "correct": in every line'


def read_labels(path: Path) -> dict[str, bool | None]:
    """Return the label of each rollout of a file, if there is one; BadInputError for a line that is wrong."""
    if not path.exists():
        return {}
    found: dict[str, bool | None] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").split("\n"), 1):
        if line.strip():
            name, label = _label(line, f"{path} line {number}")
            found[name] = label
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, each with its label; BadInputError for a line that is wrong, or a file without any."""
    if not read_labels(path):
        raise BadInputError(f"{path} has no row to label", hint="`gradus bisect RUN --with FILE.jsonl` writes them")
    return [{"correct": None, **row} for row in map(_row, _lines(path)) if row]


def write_label(path: Path, rollout_id: str, label: bool | None) -> None:
    """Set the label of a rollout; all other lines stay as they are."""
    lines = [(line, _row(line)) for line in _lines(path)]
    changed = (
        json.dumps({**row, "correct": label}, ensure_ascii=False) if row.get("rollout_id") == rollout_id else line
        for line, row in lines
    )
    replace_file(path, "".join(f"{line}\n" for line in changed))


def _row(line: str) -> dict[str, Any]:
    """Return the row of a line; an empty one if it was changed to something else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in text.split("\n") if line.strip()]


def _label(line: str, where: str) -> tuple[str, bool | None]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInputError(f"{where} is not valid JSON", hint=HOW) from None
    if not isinstance(row, dict) or not isinstance(row.get("rollout_id"), str):
        raise BadInputError(f"{where} has no rollout_id", hint="keep the lines as they were written")
    label = row.get("correct")
    if label is not None and not isinstance(label, bool):
        raise BadInputError(f"{where}: correct is {json.dumps(label)[:40]}, no label", hint=HOW)
    return row["rollout_id"], label


def ask_for(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add lines without a label to a file; those that are there stay as they are."""
    known = read_labels(path)
    before = path.read_text(encoding="utf-8-sig", errors="replace") if path.exists() else ""
    added = "".join(
        json.dumps({"rollout_id": row["rollout_id"], "correct": None, **row}, ensure_ascii=False) + "\n"
        for row in rows
        if row["rollout_id"] not in known
    )
    replace_file(path, before + ("\n" if before and not before.endswith("\n") else "") + added)
