"""Browse a run (rounds, problems, groups), the rows of one artifact, or rows to label, a file of `gradus bisect`."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from gradus.data.errors import GradusError, OnDamage, UsageError, refuse
from gradus.data.lake.queries import Answer
from gradus.flows.console.browser.groups import DiffScreen, GroupScreen, cell, plain
from gradus.flows.console.query_rows import rows_of, text_of
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import terminal_safe
from gradus.tasks.inspect.agreement.labels import HOW, LABELS, read_rows, write_label
from gradus.tasks.inspect.groups import EVERYTHING, PAGE_ROWS, GroupKey, Line, Listing, groups_of
from gradus.tasks.inspect.sql_views import RunRows, ask, open_run
from gradus.tasks.preflight.checks import REFERENCE

_MAX_CELL_CHARS = 200
_NAMES = {True: ("right", "bold green"), False: ("wrong", "bold red"), None: ("no label", "dim")}
_SHOWN = ("question", "answer", "completion")
"""Columns of a row that are shown, in this order."""


class Lines(DataTable[object]):
    """A list whose Enter is shown among the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "open")]


@dataclass
class _Shown:
    """The screen: a listing and the lines read of it."""

    listing: Listing
    num_lines: int
    lines: list[Line] = field(default_factory=list)
    cursor: int = 0


class Browser(App[None]):
    """A run in the terminal."""

    TITLE = "gradus browse"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "quit")]

    def __init__(self, rows: RunRows) -> None:
        super().__init__()
        self._rows = rows

    def on_mount(self) -> None:
        """Begin with the lists."""
        self.push_screen(ListScreen(self._rows))


class ListScreen(Screen[None]):
    """A run as lists; a line opens another list or a group."""

    CSS = """
    #where { height: auto; background: $panel; color: $text; padding: 0 1 }
    Input { display: none; border: round $accent }
    Lines { height: 1fr }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "view('rounds')", "rounds"),
        Binding("2", "view('problems')", "problems"),
        Binding("3", "view('groups')", "groups"),
        Binding("f", "filter", "filter"),
        Binding("o", "order", "order"),
        Binding("d", "diff", "diff"),
        Binding("escape", "back", "back"),
        Binding("ctrl+r", "filter_nothing", show=False),
    ]

    def __init__(self, rows: RunRows) -> None:
        super().__init__()
        self._rows = rows
        self._filter = ""
        self._condition = EVERYTHING
        self._stack: list[_Shown] = []

    def compose(self) -> ComposeResult:
        """One line that says what is listed, the filter while it is asked for, the list, the keys."""
        yield Static(id="where", markup=False)
        asked = Input(placeholder="reward < 0.5 and hint_level > 0 and tokens >= 200")
        asked.border_title = "SQL condition on reward, correct, tokens, hint_level, change, outcome ..."
        asked.border_subtitle = "enter: filter    ctrl+r: no filter    esc: leave"
        yield asked
        yield Lines(cursor_type="row", zebra_stripes=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin with the rounds."""
        self._open(Listing(self._rows, "rounds"))

    def action_view(self, view: str) -> None:
        """Begin anew with a list of everything."""
        self._stack.clear()
        self._open(Listing(self._rows, view, condition=self._condition))

    def action_back(self) -> None:
        """Leave the filter as it is, or return to the list before."""
        if not self.query_one(Input).display and len(self._stack) > 1:
            self._stack.pop()
        self._draw()

    def action_order(self) -> None:
        """Order the list by the next of its orders."""
        listing = self._stack[-1].listing
        following = (listing.orders.index(listing.ordered_by) + 1) % len(listing.orders)
        self._stack[-1] = self._read(replace(listing, order=listing.orders[following]))
        self._draw()

    def action_filter(self) -> None:
        """Ask for a filter."""
        asked = self.query_one(Input)
        asked.value, asked.display = self._filter, True
        asked.focus()

    def action_filter_nothing(self) -> None:
        """Remove the filter."""
        self._chosen("", EVERYTHING)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter, or say what is wrong."""
        condition = event.value.strip()
        try:
            self._chosen(condition, self._rows.matching(condition) if condition else EVERYTHING)
        except GradusError as error:
            self.query_one("#where", Static).update(plain(str(error), 600))

    def action_diff(self) -> None:
        """Compare two rounds of the problem under the cursor."""
        lines, row = self._stack[-1].lines, self.query_one(Lines).cursor_row
        chosen = lines[row][0] if row < len(lines) else {}
        if "problem_id" not in chosen:
            self.notify("choose a problem or a group first", severity="warning")
            return
        keys = groups_of(self._rows, chosen["problem_id"])
        if len(keys) < 2:
            self.notify("this problem was sampled once")
            return
        self.app.push_screen(DiffScreen(self._rows, keys))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the line."""
        shown = self._stack[-1]
        shown.cursor = event.cursor_row
        keys, _ = shown.lines[event.cursor_row]
        if shown.listing.view != "groups":
            self._open(Listing(self._rows, "groups", keys, self._condition))
            return
        try:
            self.app.push_screen(GroupScreen(self._rows, GroupKey(**keys)))
        except GradusError as error:
            self.notify(terminal_safe(str(error)), severity="error", markup=False)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Read the next lines when the last one is reached."""
        shown = self._stack[-1]
        if event.cursor_row >= len(shown.lines) - 1 and len(shown.lines) < shown.num_lines:
            more = shown.listing.page(len(shown.lines))
            shown.lines += more
            self._add(more, shown.listing)

    def _chosen(self, written: str, condition: str) -> None:
        self._filter, self._condition = written, condition
        self._stack = [self._read(replace(self._stack[-1].listing, condition=condition))]
        self._draw()

    def _open(self, listing: Listing) -> None:
        if self._stack:
            self._stack[-1].cursor = self.query_one(Lines).cursor_row
        self._stack.append(self._read(listing))
        self._draw()

    def _read(self, listing: Listing) -> _Shown:
        return _Shown(listing, listing.count(), listing.page())

    def _draw(self) -> None:
        shown = self._stack[-1]
        self.query_one(Input).display = False
        table = self.query_one(Lines)
        table.clear(columns=True)
        for column, right in shown.listing.columns.items():
            table.add_column(cell(column, right=right))
        self._add(shown.lines, shown.listing)
        table.move_cursor(row=shown.cursor)
        table.focus()
        self.query_one("#where", Static).update(plain(self._where(shown), 400))

    def _add(self, lines: list[Line], listing: Listing) -> None:
        ends = listing.columns.values()
        rows = ([cell(text, right=right) for text, right in zip(cells, ends, strict=True)] for _, cells in lines)
        self.query_one(Lines).add_rows(rows)

    def _where(self, shown: _Shown) -> str:
        scope, listing = shown.listing.scope, shown.listing
        of = f" of {scope['problem_id']}" if "problem_id" in scope else ""
        of = f" of round {scope['round']}, {scope['purpose']}" if "round" in scope else of
        filtered = f" | filter: {self._filter}" if self._condition != EVERYTHING else ""
        return f"{self._rows.run.name} | {listing.counted(shown.num_lines)}{of}, by {listing.ordered_by}{filtered}"


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


class LabelBrowser(App[None]):
    """Rows of a file of labels; every key that sets a label writes the file."""

    TITLE = "gradus browse"
    ENABLE_COMMAND_PALETTE = False
    CSS = "#row { height: 1fr; padding: 0 1 } #row Static { height: auto }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "label('right')", "right"),
        Binding("n", "label('wrong')", "wrong"),
        Binding("u", "label('')", "no label"),
        Binding("left", "move(-1)", "other rows", key_display="←→", priority=True),
        Binding("right", "move(1)", show=False, priority=True),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._rows: list[dict[str, Any]] = read_rows(path)
        self._at = next((at for at, row in enumerate(self._rows) if row["correct"] is None), 0)

    def compose(self) -> ComposeResult:
        """The number of the row and its label, its texts, the keys."""
        yield Static(id="place", markup=False)
        with VerticalScroll(id="row"):
            yield Static(id="texts", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Show the first row without a label."""
        self._draw()

    def action_move(self, by: int) -> None:
        """Show the row `by` places on."""
        self._at = min(max(0, self._at + by), len(self._rows) - 1)
        self._draw()

    def action_label(self, name: str) -> None:
        """Label the row, write the file, and show the next row."""
        label = {"right": True, "wrong": False}.get(name)
        row = self._rows[self._at]
        write_label(self._path, row["rollout_id"], label)
        row["correct"] = label
        self.action_move(1)

    def _draw(self) -> None:
        row = self._rows[self._at]
        left = sum(each["correct"] is None for each in self._rows)
        name, style = _NAMES[row["correct"]]
        place = Text(f"row {self._at + 1} of {len(self._rows)}, {left} without a label: ", "bold").append(name, style)
        self.query_one("#place", Static).update(place)
        texts = Text()
        for key in _SHOWN:
            if row.get(key) is not None:
                texts.append(f"{key}\n", "bold").append_text(plain(str(row[key]))).append("\n\n")
        self.query_one("#texts", Static).update(texts)
        self.query_one("#row").scroll_home(animate=False)


def browse_run(home: Home, run: str, say: Callable[[str], None], on_damage: OnDamage = refuse) -> None:
    """Browse a run, rows of an artifact or rows to label; UsageError if there is no terminal, or no such run."""
    is_artifact = bool(REFERENCE.fullmatch(run))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        verb, what = ("show", "prints its first rows") if is_artifact else ("report", "writes a page")
        instead = HOW if run.endswith(LABELS) else f"`gradus {verb} {shlex.quote(run)}` {what}"
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
