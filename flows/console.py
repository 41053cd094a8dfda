"""What the command line prints: one JSON object for machines, a short table for people."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.redaction import hide
from tasks.report import terminal_safe

Json = Mapping[str, Any]


def answer(result: Json, as_json: bool, render: Callable[[Json], None] | None = None) -> None:
    """Print a verb's result: JSON alone on stdout, or the verb's own view, or a plain list of its fields."""
    if as_json:
        sys.stdout.write(json.dumps(result, default=str, allow_nan=False) + "\n")
    elif render is not None:
        render(result)
    else:
        fields(result)


def fields(result: Json, title: str = "") -> None:
    """A two-column table of a result's fields; nested ones as compact JSON."""
    rows = [(key, value if isinstance(value, str) else json.dumps(value, default=str)) for key, value in result.items()]
    table(title, ("", ""), rows, header=False)


def table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]], *, header: bool = True) -> None:
    """A table whose cells are never read as markup: a policy may have written them."""
    view = Table(title=title or None, show_header=header, title_justify="left", header_style="bold")
    for column in columns:
        view.add_column(column, overflow="fold")
    for row in rows:
        view.add_row(*(Text(terminal_safe(str(cell))[:500]) for cell in row))
    Console().print(view)


def line(text: str) -> None:
    """One plain line, without secrets."""
    Console().print(Text(terminal_safe(hide(text))))
