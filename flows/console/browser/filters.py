"""The filter of `gradus browse`: one condition in SQL."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from gradus.data.errors import GradusError
from gradus.flows.console.browser.texts import plain
from gradus.tasks.inspect.browsing import EVERYTHING


class FilterForm(ModalScreen[tuple[str, str] | None]):
    """Asks for a filter; answers with it as it was written and its SQL, or None if it was left."""

    CSS = """
    FilterForm { align: center middle }
    FilterForm > Vertical { width: 76; height: auto; max-height: 100%; padding: 0 1 }
    FilterForm > Vertical { border: round $accent; background: $surface }
    FilterForm Input { border: tall $border-blurred }
    #wrong { color: $error; height: auto }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "leave"),
        Binding("ctrl+r", "clear", "no filter"),
    ]

    def __init__(self, now: str, matching: Callable[[str], str]) -> None:
        super().__init__()
        self._now = now
        self._matching = matching

    def compose(self) -> ComposeResult:
        """The condition and the keys."""
        with Vertical():
            yield Label("SQL condition on reward, correct, tokens, hint_level, change, outcome, round ...")
            yield Input(self._now, placeholder="reward < 0.5 and hint_level > 0 and tokens >= 200")
            yield Label("enter: filter    ctrl+r: no filter    esc: leave")
            yield Static(id="wrong", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter, or say what is wrong."""
        condition = event.value.strip()
        try:
            self.dismiss((condition, self._matching(condition) if condition else EVERYTHING))
        except GradusError as error:
            self.query_one("#wrong", Static).update(plain(str(error), 600))

    def action_clear(self) -> None:
        """Remove the filter."""
        self.dismiss(("", EVERYTHING))
