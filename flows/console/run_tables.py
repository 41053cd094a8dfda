"""The tables of `gradus runs` and `gradus show`: coloured on a terminal, one line for each row, names never cut."""

from collections.abc import Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.text import Text

from gradus.flows.console.output import View, line, safe
from gradus.tasks.formats import points, short, size, terminal_safe
from gradus.tasks.runs.history import RunList, RunStory

REASONS = 5
"""For how many runs, newest first, `gradus runs` says why they did not finish."""
STYLES = {"finished": "green", "reused": "dim", "running": "blue", "failed": "red"}
OTHERWISE = "yellow"
NUMBERS = ("round", "seconds", "gain", "size")
"""Columns that end at the right."""

Cells = Sequence[str]


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
    _print(columns, rows, last=("seconds", "stages", "verb"))
    for run in [r for r in result["runs"] if r["error"]][:REASONS]:
        line(f"{run['run']}: {run['error']}")
    line(_sizes(result))


def render_run_story(run: RunStory) -> None:
    """Print the status of the run and its reason, one line for each stage attempt, what failed in it, its bytes."""
    View().print(
        safe(f"{run['run']}: "),
        Text(run["status"], _style(run["status"])),
        safe(_because(run["error"])),
        sep="",
        soft_wrap=True,
    )
    columns = ("stage", "round", "purpose", "status", "seconds", "size", "output")
    rows = [
        (
            row["stage"],
            str(row["round"]),
            row["purpose"],
            "pruned" if row["pruned"] and row["status"] == "finished" else row["status"],
            f"{row['seconds']:.1f}",
            size(row["bytes"]),
            row["output"],
        )
        for row in run["attempts"]
    ]
    _print(columns, rows, last=("size", "seconds"), names="output")
    for row in run["attempts"]:
        if row["error"] and row["error"] != run["error"]:
            line(f"{row['stage']} of round {row['round']} ({row['status']}): {row['error']}")
    if run["status"] in ("failed", "killed") and run["logs"]:
        line(f"logs: {run['logs']}")
    line(_sizes(run))


def _sizes(result: RunList | RunStory) -> str:
    named = ", ".join(f"{table} {size(num)}" for table, num in result["bytes_by_table"].items() if num)
    return f"{size(result['bytes'])} of artifacts: {named}" if named else "no artifacts"


def _print(columns: Cells, rows: Sequence[Cells], *, last: Cells, names: str = "") -> None:
    """A table that fits the width: artifact names are shortened first, then columns left out in the order of `last`."""
    console = View()
    if _width(columns, rows) > console.width and names in columns:
        place = columns.index(names)
        rows = [(*row[:place], short(row[place]), *row[place + 1 :]) for row in rows]
    for name in last:
        if _width(columns, rows) > console.width:
            place = columns.index(name)
            columns, *rows = [(*row[:place], *row[place + 1 :]) for row in (columns, *rows)]
    widths = _widths(columns, rows)
    shown = Text(_line(columns, columns, widths), "bold", end="")
    for row in rows:
        text = _line(columns, row, widths)
        if "status" in columns:
            place = columns.index("status")
            start = sum(widths[:place]) + 2 * place
            shown.append(text[:start]).append(text[start : start + widths[place]], _style(row[place]))
            text = text[start + widths[place] :]
        shown.append(text)
    console.print(shown, soft_wrap=True, end="")


def _line(columns: Cells, row: Cells, widths: Sequence[int]) -> str:
    cells = zip(columns, row, widths, strict=True)
    return "  ".join(_padded(terminal_safe(cell), width, right=name in NUMBERS) for name, cell, width in cells) + "\n"


def _padded(cell: str, width: int, *, right: bool) -> str:
    room = " " * (width - cell_len(cell))
    return room + cell if right else cell + room


def _widths(columns: Cells, rows: Sequence[Cells]) -> list[int]:
    return [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]


def _width(columns: Cells, rows: Sequence[Cells]) -> int:
    """Width of the table, with two spaces between columns."""
    return sum(_widths(columns, rows)) + 2 * (len(columns) - 1)


def _style(status: str) -> str:
    return STYLES.get(status, OTHERWISE)


def _because(error: str) -> str:
    return f": {error}" if error else ""


def _when(seconds: float | None) -> str:
    """Local time of day; for another year than this one, the date alone."""
    if seconds is None:
        return "-"
    began, now = datetime.fromtimestamp(seconds).astimezone(), datetime.now().astimezone()
    return f"{began:%d %b %H:%M}" if began.year == now.year else f"{began:%Y-%m-%d}"
