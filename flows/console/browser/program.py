"""Browse a run, or the rows of one artifact: a list, and a row whole."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.data.lake.queries import Answer
from gradus.flows.console.browser.groups import cell, plain
from gradus.flows.console.browser.labelling import LabelBrowser
from gradus.flows.console.browser.lists import Browser, Lines
from gradus.flows.console.query_rows import rows_of, text_of
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.agreement.labels import HOW, LABELS
from gradus.tasks.inspect.groups import PAGE_ROWS
from gradus.tasks.inspect.sql_views import ask, open_run
from gradus.tasks.preflight.checks import REFERENCE

_MAX_CELL_CHARS = 200


class RowBrowser(App[None]):
    """The rows of an artifact, read page by page."""

    TITLE = "gradus browse"
    ENABLE_COMMAND_PALETTE = False
    CSS = "Lines { height: 1fr }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "quit")]

    def __init__(self, name: str, found: Answer) -> None:
        super().__init__()
        self._name, self._columns = name, found.columns
        self._left: Iterator[Sequence[object]] = rows_of(found)
        self._rows: list[list[str]] = []

    def compose(self) -> ComposeResult:
        """The name of the artifact, its rows, the keys."""
        yield Static(plain(self._name, 400), markup=False)
        yield Lines(cursor_type="row", zebra_stripes=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Show the first rows."""
        self.query_one(Lines).add_columns(*map(cell, self._columns))
        self._read()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Read the next rows when the last one is reached."""
        if event.cursor_row >= len(self._rows) - 1:
            self._read()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the row."""
        self.push_screen(_RowScreen(self._columns, self._rows[event.cursor_row]))

    def _read(self) -> None:
        more = [list(map(text_of, row)) for row in islice(self._left, PAGE_ROWS)]
        self._rows += more
        self.query_one(Lines).add_rows([cell(text[:_MAX_CELL_CHARS]) for text in row] for row in more)


class _RowScreen(Screen[None]):
    """One row, column by column."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]

    def __init__(self, columns: Sequence[str], row: Sequence[str]) -> None:
        super().__init__()
        self._cells = list(zip(columns, row, strict=True))

    def compose(self) -> ComposeResult:
        """Every column with its whole value."""
        with VerticalScroll():
            for name, value in self._cells:
                yield Static(plain(f"{name}: {value}"), markup=False)
        yield Footer(compact=True, show_command_palette=False)


def browse_run(home: Home, run: str, say: Callable[[str], None], on_damage: OnDamage = refuse) -> None:
    """Browse a run, the rows of an artifact, or the rows to label of a file.

    UsageError if this is not a terminal or there is no such run.
    """
    is_artifact = bool(REFERENCE.fullmatch(run))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        name = shlex.quote(run)
        instead = (
            f"`gradus show {name}` prints its first rows" if is_artifact else f"`gradus report {name}` writes a page"
        )
        if run.endswith(LABELS):
            instead = HOW
        raise UsageError("browse needs a terminal", hint=f"{instead} instead")
    if run.endswith(LABELS):
        LabelBrowser(Path(run)).run()
        return
    if is_artifact:
        with ask(home, f'select * from "{run}"', None, say, on_damage) as found:  # noqa: S608 - a checked name
            RowBrowser(run, found).run()
        return
    with open_run(home, run, say, on_damage=on_damage) as rows:
        Browser(rows).run()
