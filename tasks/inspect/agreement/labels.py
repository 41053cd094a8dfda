"""Labels of the user: a file with a line for each rollout, `correct` true or false, null without a label.

{"rollout_id": "...", "correct": null, "question": "...", "answer": "34", "completion": "..."}
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradus.data.errors import BadInputError
from gradus.data.files import replace_file

LABELS = ".jsonl"
"""The end of its name."""
HOW = 'write true, false or null after "correct": in every line'


def read_labels(path: Path) -> dict[str, bool | None]:
    """Return the label of each rollout of a file, if there is one; BadInputError for a line that is wrong."""
    return {row["rollout_id"]: row["correct"] for row in _rows(path)}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, each with its label; BadInputError for a line that is wrong, or a file without any."""
    rows = list(_rows(path))
    if not rows:
        raise BadInputError(f"{path} has no row to label", hint="`gradus bisect RUN --with FILE.jsonl` writes them")
    return rows


def write_label(path: Path, rollout_id: str, label: bool | None) -> None:
    """Set the label of a rollout; all other lines stay as they are, also those that were changed to something else."""
    lines = [line for line in _text(path).split("\n") if line.strip()]
    for number, line in enumerate(lines):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and row.get("rollout_id") == rollout_id:
                lines[number] = json.dumps({**row, "correct": label}, ensure_ascii=False)
    replace_file(path, "".join(f"{line}\n" for line in lines))


def ask_for(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add lines without a label to a file; those that are there stay as they are."""
    known, before = read_labels(path), _text(path)
    added = "".join(
        json.dumps({"rollout_id": row["rollout_id"], "correct": None, **row}, ensure_ascii=False) + "\n"
        for row in rows
        if row["rollout_id"] not in known
    )
    replace_file(path, before + ("\n" if before and not before.endswith("\n") else "") + added)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig", errors="replace") if path.exists() else ""


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            yield _row(line, f"{path} line {number}")


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInputError(f"{where} is not valid JSON", hint=HOW) from None
    if not isinstance(row, dict) or not isinstance(row.get("rollout_id"), str):
        raise BadInputError(f"{where} has no rollout_id", hint="keep the lines as they were written")
    label = row.get("correct")
    if label is not None and not isinstance(label, bool):
        raise BadInputError(f"{where}: correct is {json.dumps(label)[:40]}, no label", hint=HOW)
    return {"correct": None, **row}
