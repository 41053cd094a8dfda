"""Texts of a run for the terminal: never markup, no terminal commands, and not more than a terminal can draw."""

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gradus.tasks.formats import more, number, terminal_safe
from gradus.tasks.inspect.groups import Group, GroupKey, Rollout, why
from gradus.tasks.inspect.word_diff import Part

MAX_CHARS = 20_000
"""Characters of a completion that are shown."""
MAX_CELL = 18
_UNSURE = ((0.9, ""), (0.5, "cyan"), (0.2, "yellow"), (0.05, "dark_orange"), (0.0, "bold red"))
"""Least probability of a token and the style that it is shown in."""


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
    if rollout.pieces is None or not colours:
        return plain(rollout.completion)
    found, left = Text(), MAX_CHARS
    for piece, logprob in rollout.pieces:
        probability = math.exp(min(logprob, 0.0))
        style = next(name for least, name in _UNSURE if probability >= least)
        found.append(terminal_safe(piece[: max(0, left)]), style)
        left -= len(piece)
    return found.append(more(rollout.completion, MAX_CHARS), "dim")


def verdict(rollout: Rollout, answer: str | None) -> Text:
    """Return reward, its parts, advantage, length and why it was judged so."""
    style = {True: "bold green", False: "bold red", None: "bold"}[rollout.correct]
    found = Text("reward ").append(number(rollout.reward), style)
    if len(rollout.parts) > 1:
        parts = ", ".join(f"{name} {number(value)}" for name, value in rollout.parts.items())
        found.append(f" ({terminal_safe(parts)})")
    if rollout.advantage is not None:
        found.append(f"\nadvantage {number(rollout.advantage)}")
    if rollout.tokens is not None:
        found.append(f"\n{rollout.tokens:,} tokens, {terminal_safe(rollout.finish_reason or 'no end')}")
    return found.append(f"\n{terminal_safe(why(rollout, answer))}", "italic")


def problem(group: Group) -> Text:
    """Return question, hint and answer of a group."""
    found = plain(group.question, 4000)
    if group.hint_text:
        found.append(f"\nhint of level {group.hint_level}: ", "dim").append_text(_hint(group.hint_text))
    if group.answer is not None:
        found.append("\nanswer: ", "dim").append(terminal_safe(group.answer[:200]))
    return found


def place(key: GroupKey) -> str:
    """Return where a group stands in the run."""
    return terminal_safe(f"round {key.round}, {key.purpose}, {key.problem_id}")


def differing(parts: Sequence[Part]) -> Text:
    """Return a text whose marked parts stand out."""
    found, left = Text(), MAX_CHARS
    for text, differs in parts:
        found.append(terminal_safe(text[: max(0, left)]), "reverse" if differs else "")
        left -= len(text)
    return found


def _hint(text: str) -> Text:
    shown = plain(text, 4000)
    shown.stylize("black on yellow")
    return shown
