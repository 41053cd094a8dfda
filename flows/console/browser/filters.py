"""The filter of `gradus browse`: fields for the usual columns, and a condition in SQL for the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from gradus.data.errors import GradusError
from gradus.flows.console.browser.texts import plain
from gradus.tasks.inspect.browsing import EVERYTHING, comparison, joined

FIELDS = {
    "reward": "< 0.5",
    "hint_level": "> 0",
    "tokens": ">= 200",
    "change": "> 0",
}
"""Columns that have a field of their own, each with an example."""
_SQL = "sql"


@dataclass(frozen=True)
class Filter:
    """What was written into the fields."""

    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The filter in one line of SQL; empty if there is none. Raise UsageError if a field is no comparison."""
        compared = [comparison(name, self.fields.get(name, "")) for name in FIELDS]
        return joined([each for each in (*compared, self.fields.get(_SQL, "").strip()) if each])


class FilterForm(ModalScreen[tuple[Filter, str] | None]):
    """Asks for a filter; answers with it and its SQL, or None if it was left."""

    CSS = """
    FilterForm { align: center middle }
    FilterForm > Vertical { width: 76; height: auto; max-height: 100%; padding: 0 1 }
    FilterForm > Vertical { border: round $accent; background: $surface }
    FilterForm Grid { grid-size: 4 1; grid-gutter: 0 1; height: 4 }
    FilterForm Input { border: tall $border-blurred }
    #wrong { color: $error; height: auto }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "leave"),
        Binding("ctrl+r", "clear", "no filter"),
    ]

    def __init__(self, now: Filter, matching: Callable[[str], str]) -> None:
        super().__init__()
        self._now = now
        self._matching = matching

    def compose(self) -> ComposeResult:
        """A field for each column, one for SQL, and the keys."""
        with Vertical():
            with Grid():
                for name, example in FIELDS.items():
                    with Vertical():
                        yield Label(name.replace("_", " "))
                        yield Input(self._now.fields.get(name, ""), placeholder=example, id=name)
            yield Label("SQL condition")
            yield Input(self._now.fields.get(_SQL, ""), placeholder="outcome = 'unparsed' and round > 3", id=_SQL)
            yield Label("enter: filter    tab: next field    ctrl+r: no filter    esc: leave")
            yield Static(id="wrong", markup=False)

    def on_input_submitted(self) -> None:
        """Filter, or say what is wrong."""
        try:
            found = Filter({each.id or "": each.value for each in self.query(Input)})
            self.dismiss((found, self._matching(found.text) if found.text else EVERYTHING))
        except GradusError as error:
            self.query_one("#wrong", Static).update(plain(str(error), 600))

    def action_clear(self) -> None:
        """Remove the filter."""
        self.dismiss((Filter(), EVERYTHING))
