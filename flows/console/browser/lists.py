"""The lists of `gradus browse`: rounds, problems, groups; what is opened, filtered and ordered."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from gradus.data.errors import GradusError
from gradus.flows.console.browser.groups import DiffScreen, GroupScreen, cell, plain
from gradus.tasks.formats import terminal_safe
from gradus.tasks.inspect.groups import EVERYTHING, GroupKey, Line, Listing, groups_of
from gradus.tasks.inspect.sql_views import RunRows
from gradus.tasks.inspect.token_pieces import Tokenizers


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
        self._tokenizers = Tokenizers(rows.store, rows.run.on_damage)
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
        self.app.push_screen(DiffScreen(self._rows, self._tokenizers, keys))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the line."""
        shown = self._stack[-1]
        shown.cursor = event.cursor_row
        keys, _ = shown.lines[event.cursor_row]
        if shown.listing.view != "groups":
            self._open(Listing(self._rows, "groups", keys, self._condition))
            return
        try:
            self.app.push_screen(GroupScreen(self._rows, self._tokenizers, GroupKey(**keys)))
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
        for column in shown.listing.columns:
            table.add_column(cell(column, right=shown.listing.is_number(column)))
        self._add(shown.lines, shown.listing)
        table.move_cursor(row=shown.cursor)
        table.focus()
        self.query_one("#where", Static).update(plain(self._where(shown), 400))

    def _add(self, lines: list[Line], listing: Listing) -> None:
        right = [listing.is_number(column) for column in listing.columns]
        self.query_one(Lines).add_rows(
            [cell(text, right=flush) for text, flush in zip(cells, right, strict=True)] for _, cells in lines
        )

    def _where(self, shown: _Shown) -> str:
        scope, listing = shown.listing.scope, shown.listing
        of = f" of {scope['problem_id']}" if "problem_id" in scope else ""
        of = f" of round {scope['round']}, {scope['purpose']}" if "round" in scope else of
        filtered = f" | filter: {self._filter}" if self._condition != EVERYTHING else ""
        return f"{self._rows.run.name} | {listing.counted(shown.num_lines)}{of}, by {listing.ordered_by}{filtered}"
