"""Label rollouts as right or wrong, one after the other: `gradus browse labels.jsonl`, a file of `gradus bisect`."""

from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from gradus.flows.console.browser.groups import plain
from gradus.tasks.inspect.agreement.labels import read_rows, write_label

_NAMES = {True: ("right", "bold green"), False: ("wrong", "bold red"), None: ("no label", "dim")}
_SHOWN = ("question", "answer", "completion")
"""Columns of a row that are shown, in this order."""


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
