"""A group side by side, one problem between two rounds, and their texts.

Texts are never markup, hold no terminal commands, and are not more than a terminal can draw.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, HorizontalScroll, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer, Static

from gradus.tasks.formats import more, number, terminal_safe
from gradus.tasks.inspect.groups import Group, GroupKey, Rollout, begun, read_groups, why
from gradus.tasks.inspect.sql_views import RunRows
from gradus.tasks.inspect.token_pieces import Part, doubt, word_diff

MAX_CHARS = 20_000
"""Characters of a completion that are shown."""
MAX_CELL = 18
_DOUBTED = ("", "cyan", "yellow", "dark_orange", "bold red")
"""The style of a token by how unlikely it was."""
MIN_WIDTH = 38
"""Columns of the terminal that a rollout has at least."""
MAX_ROLLOUTS = 32
"""Rollouts of a group that are shown; of more, the best and the worst half."""


class _Columns(Screen[None]):
    """A problem, and texts beside each other below it, which scroll together."""

    CSS = """
    #problem { height: auto; max-height: 7; border-bottom: solid $panel; padding: 0 1 }
    #problem Static, .column Static { height: auto }
    Horizontal, HorizontalScroll { height: 1fr }
    .column { width: 1fr; border-right: solid $panel; padding: 0 1 }
    .verdict { border-bottom: dashed $panel }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)", "scroll", key_display="↑↓", priority=True),
        Binding("down", "scroll(1)", show=False, priority=True),
        Binding("escape", "dismiss", "back"),
    ]

    def action_scroll(self, by: int) -> None:
        """Scroll all columns together."""
        for column in self.query(".column"):
            column.scroll_relative(y=3 * by, animate=False)


class GroupScreen(_Columns):
    """The rollouts of a group beside each other, the best first, the worst second."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "next rollouts", key_display="←→", priority=True),
        Binding("right", "step(1)", show=False, priority=True),
        Binding("c", "colours", "colours"),
    ]

    def __init__(self, rows: RunRows, key: GroupKey) -> None:
        super().__init__()
        (self._group,) = read_groups(rows, [key], MAX_ROLLOUTS)
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
            for rollout in group.rollouts:
                with VerticalScroll(classes="column", can_focus=False):
                    yield Static(verdict(rollout, group.answer), classes="verdict")
                    yield Static(completion(rollout, colours=True), classes="completion")
        yield Footer(compact=True, show_command_palette=False)

    def on_resize(self, event: Resize) -> None:
        """Fill the width with whole columns of at least MIN_WIDTH."""
        self._width = event.size.width // max(1, event.size.width // MIN_WIDTH)
        for column in self.query(".column"):
            column.styles.width = self._width
        self.action_step(0)

    def action_step(self, by: int) -> None:
        """Begin with the next rollout at the left, or with the previous one."""
        self._first = min(max(0, self._first + by), len(self._group.rollouts) - 1)
        self.query_one(HorizontalScroll).scroll_to(x=self._width * self._first, animate=False)

    def action_colours(self) -> None:
        """Colour tokens by their probability, or not."""
        self._colours = not self._colours
        for rollout, shown in zip(self._group.rollouts, self.query(".completion").results(Static), strict=True):
            shown.update(completion(rollout, colours=self._colours))


class DiffScreen(_Columns):
    """The best, or another, completion of a problem in two rounds, with the words that differ."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(0, -1)", "left round", key_display="←→", priority=True),
        Binding("right", "move(0, 1)", show=False, priority=True),
        Binding("comma", "move(1, -1)", "right round", key_display=",."),
        Binding("full_stop", "move(1, 1)", show=False),
        Binding("w", "worst", "best or worst"),
    ]

    def __init__(self, rows: RunRows, keys: Sequence[GroupKey]) -> None:
        super().__init__()
        self._keys = keys
        self._at = [0, len(keys) - 1]
        self._worst = False

        def group(index: int) -> Group:
            return read_groups(rows, [keys[index]])[0]

        self._group = cache(group)

    def compose(self) -> ComposeResult:
        """The problem, both sides, the keys."""
        with VerticalScroll(id="problem", can_focus=False):
            yield Static(id="question", markup=False)
        with Horizontal():
            for name in ("earlier", "later"):
                with VerticalScroll(classes="column", can_focus=False):
                    yield Static(id=name, markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Show the first and the last round."""
        self._draw()

    def action_move(self, side: int, by: int) -> None:
        """Show another round at the left (0) or at the right (1)."""
        self._at[side] = min(max(0, self._at[side] + by), len(self._keys) - 1)
        self._draw()

    def action_worst(self) -> None:
        """Compare the worst completions instead of the best, or the best again."""
        self._worst = not self._worst
        self._draw()

    def _draw(self) -> None:
        groups = [self._group(index) for index in self._at]
        chosen = [group.rollouts[1 if self._worst and len(group.rollouts) > 1 else 0] for group in groups]
        self.query_one("#question", Static).update(problem(groups[1]))
        sides = word_diff(*(rollout["completion"] for rollout in chosen))
        for name, group, rollout, parts in zip(("earlier", "later"), groups, chosen, sides, strict=True):
            which = "worst" if self._worst else "best"
            head = f"{place(group.key)}\n{which} of {group.num_rollouts}, {group.num_correct} right\n"
            shown = Text().append(head, "bold").append_text(verdict(rollout, group.answer)).append("\n\n")
            self.query_one(f"#{name}", Static).update(shown.append_text(differing(parts)))


def plain(text: str, max_chars: int = MAX_CHARS) -> Text:
    """Return a text as it is, cut with a note of what was cut."""
    return Text(terminal_safe(text[:max_chars])).append(more(text, max_chars), "dim")


def cell(text: str, *, right: bool = False) -> Text:
    """Return a text for one cell of a list: one line of at most MAX_CELL columns."""
    one_line = " ".join(terminal_safe(text[: 4 * MAX_CELL]).split())
    cut = one_line if cell_len(one_line) <= MAX_CELL else f"{set_cell_size(one_line, MAX_CELL - 1)}…"
    return Text(cut, justify="right" if right else "left", no_wrap=True)


def completion(rollout: Rollout, *, colours: bool) -> Text:
    """Return a completion, its tokens coloured by their probability if that is known and wanted."""
    if rollout["pieces"] is None or not colours:
        return plain(rollout["completion"])
    inserted = "reverse"  # sampled by nobody
    styled = ((piece, inserted if lp is None else _DOUBTED[doubt(lp)]) for piece, lp in rollout["pieces"])
    return _cut(styled).append(more(rollout["completion"], MAX_CHARS), "dim")


def verdict(rollout: Rollout, answer: str | None) -> Text:
    """Return reward, its parts, advantage, length and why it was judged so."""
    style = {True: "bold green", False: "bold red", None: "bold"}[rollout["correct"]]
    found = Text("reward ").append(number(rollout["reward"]), style)
    if len(rollout["parts"]) > 1:
        parts = ", ".join(f"{name} {number(value)}" for name, value in rollout["parts"].items())
        found.append(f" ({terminal_safe(parts)})")
    if rollout["advantage"] is not None:
        found.append(f"\nadvantage {number(rollout['advantage'])}")
    if rollout["tokens"] is not None:
        found.append(f"\n{rollout['tokens']:,} tokens, {terminal_safe(rollout['finish_reason'] or 'no end')}")
    if text := begun(rollout):
        found.append(f"\n{terminal_safe(text)}", "dim")
    return found.append(f"\n{terminal_safe(why(rollout, answer))}", "italic")


def problem(group: Group) -> Text:
    """Return question, hint and answer of a group."""
    found = plain(group.question, 4000)
    if group.hint_text:
        hint = plain(group.hint_text, 4000)
        hint.stylize("black on yellow")
        found.append(f"\nhint of level {group.hint_level}: ", "dim").append_text(hint)
    if group.answer is not None:
        found.append("\nanswer: ", "dim").append(terminal_safe(group.answer[:200]))
    return found


def place(key: GroupKey) -> str:
    """Return where a group stands in the run."""
    return terminal_safe(f"round {key.round}, {key.purpose}, {key.problem_id}")


def differing(parts: Sequence[Part]) -> Text:
    """Return a text whose marked parts stand out."""
    return _cut((text, "reverse" if differs else "") for text, differs in parts)


def _cut(parts: Iterable[tuple[str, str]]) -> Text:
    """Return the first MAX_CHARS characters of texts, each in its style."""
    found, left = Text(), MAX_CHARS
    for text, style in parts:
        found.append(terminal_safe(text[: max(0, left)]), style)
        left -= len(text)
    return found
