"""The files that people read about a stage: summary.md, head.csv, sample.html; hostile text stays text in each."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gradus.tasks.formats import csv_cell, markdown, visible
from gradus.tasks.runs.records import Report, Sample

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
