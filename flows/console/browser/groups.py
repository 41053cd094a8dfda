"""A group side by side, and one problem between two rounds."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, HorizontalScroll, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer, Static

from gradus.flows.console.browser.texts import completion, differing, place, problem, verdict
from gradus.tasks.inspect.groups import Group, GroupKey, read_group
from gradus.tasks.inspect.run_rows import RunRows
from gradus.tasks.inspect.token_pieces import Tokenizers
from gradus.tasks.inspect.word_diff import word_diff

MIN_WIDTH = 38
"""Columns of the terminal that a rollout has at least."""
MAX_ROLLOUTS = 32
"""Rollouts of a group that are shown; of more, the best and the worst half."""


class GroupScreen(Screen[None]):
    """The rollouts of a group beside each other, the best first, the worst second."""

    CSS = """
    #problem { height: auto; max-height: 7; border-bottom: solid $panel; padding: 0 1 }
    #problem Static { height: auto }
    GroupScreen HorizontalScroll { height: 1fr }
    .rollout { border-right: solid $panel; padding: 0 1 }
    .rollout Static { height: auto }
    .verdict { border-bottom: dashed $panel }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "next rollouts", key_display="←→", priority=True),
        Binding("right", "step(1)", show=False, priority=True),
        Binding("up", "scroll(-1)", "scroll", key_display="↑↓", priority=True),
        Binding("down", "scroll(1)", show=False, priority=True),
        Binding("c", "colours", "colours"),
        Binding("escape", "dismiss", "back"),
    ]

    def __init__(self, rows: RunRows, tokenizers: Tokenizers, key: GroupKey) -> None:
        super().__init__()
        self._group = read_group(rows, key, tokenizers, MAX_ROLLOUTS)
        self._colours = True
        self._first = 0
        self._width = MIN_WIDTH

    def compose(self) -> ComposeResult:
        """The problem, a column for each rollout, the keys."""
        group = self._group
        with VerticalScroll(id="problem", can_focus=False):
            head = f"{place(group.key)}: {len(group.rollouts)} of {group.num_rollouts} rollouts\n"
            yield Static(Text().append(head, "bold").append_text(problem(group)))
        with HorizontalScroll(can_focus=False):
            for number, rollout in enumerate(group.rollouts):
                with VerticalScroll(classes="rollout", id=f"rollout-{number}", can_focus=False):
                    yield Static(verdict(rollout, group.answer), classes="verdict")
                    yield Static(completion(rollout, colours=True), classes="completion")
        yield Footer(compact=True, show_command_palette=False)

    def on_resize(self, event: Resize) -> None:
        """Fill the width with whole columns of at least MIN_WIDTH."""
        self._width = event.size.width // max(1, event.size.width // MIN_WIDTH)
        for column in self.query(".rollout"):
            column.styles.width = self._width
        self.action_step(0)

    def action_step(self, by: int) -> None:
        """Begin with the next rollout at the left, or with the previous one."""
        self._first = min(max(0, self._first + by), len(self._group.rollouts) - 1)
        self.query_one(HorizontalScroll).scroll_to(x=self._width * self._first, animate=False)

    def action_scroll(self, by: int) -> None:
        """Scroll all columns together."""
        for column in self.query(".rollout"):
            column.scroll_relative(y=3 * by, animate=False)

    def action_colours(self) -> None:
        """Colour tokens by their probability, or not."""
        self._colours = not self._colours
        for rollout, shown in zip(self._group.rollouts, self.query(".completion").results(Static), strict=True):
            shown.update(completion(rollout, colours=self._colours))


class DiffScreen(Screen[None]):
    """The best, or another, completion of a problem in two rounds, with the words that differ."""

    CSS = """
    #asked { height: auto; max-height: 6; border-bottom: solid $panel; padding: 0 1 }
    #asked Static { height: auto }
    DiffScreen Horizontal { height: 1fr }
    .side { width: 1fr; border-right: solid $panel; padding: 0 1 }
    .side Static { height: auto }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "earlier(-1)", "left round", key_display="←→", priority=True),
        Binding("right", "earlier(1)", show=False, priority=True),
        Binding("comma", "later(-1)", "right round", key_display=",."),
        Binding("full_stop", "later(1)", show=False),
        Binding("w", "worst", "best or worst"),
        Binding("up", "scroll(-1)", "scroll", key_display="↑↓", priority=True),
        Binding("down", "scroll(1)", show=False, priority=True),
        Binding("escape", "dismiss", "back"),
    ]

    def __init__(self, rows: RunRows, tokenizers: Tokenizers, keys: Sequence[GroupKey]) -> None:
        super().__init__()
        self._rows = rows
        self._tokenizers = tokenizers
        self._keys = keys
        self._at = [0, len(keys) - 1]
        self._worst = False
        self._read: dict[int, Group] = {}

    def compose(self) -> ComposeResult:
        """The problem, both sides, the keys."""
        with VerticalScroll(id="asked", can_focus=False):
            yield Static(id="question", markup=False)
        with Horizontal():
            for name in ("earlier", "later"):
                with VerticalScroll(classes="side", can_focus=False):
                    yield Static(id=name, markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Show the first and the last round."""
        self._draw()

    def action_earlier(self, by: int) -> None:
        """Show another round at the left."""
        self._move(0, by)

    def action_later(self, by: int) -> None:
        """Show another round at the right."""
        self._move(1, by)

    def action_worst(self) -> None:
        """Compare the worst completions instead of the best, or the best again."""
        self._worst = not self._worst
        self._draw()

    def action_scroll(self, by: int) -> None:
        """Scroll both sides."""
        for side in self.query(".side"):
            side.scroll_relative(y=3 * by, animate=False)

    def _move(self, side: int, by: int) -> None:
        self._at[side] = min(max(0, self._at[side] + by), len(self._keys) - 1)
        self._draw()

    def _draw(self) -> None:
        groups = [self._group(index) for index in self._at]
        chosen = [group.rollouts[1 if self._worst and len(group.rollouts) > 1 else 0] for group in groups]
        self.query_one("#question", Static).update(problem(groups[1]))
        sides = word_diff(*(rollout.completion for rollout in chosen))
        for name, group, rollout, parts in zip(("earlier", "later"), groups, chosen, sides, strict=True):
            which = "worst" if self._worst else "best"
            head = f"{place(group.key)}\n{which} of {group.num_rollouts}, {group.num_correct} right\n"
            shown = Text().append(head, "bold").append_text(verdict(rollout, group.answer)).append("\n\n")
            self.query_one(f"#{name}", Static).update(shown.append_text(differing(parts)))

    def _group(self, index: int) -> Group:
        if index not in self._read:
            self._read[index] = read_group(self._rows, self._keys[index], self._tokenizers)
        return self._read[index]
