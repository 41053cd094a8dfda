"""The output of the command line: one JSON object for machines, a short table for people."""

import contextlib
import json
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NoReturn, TypeVar, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradus.data.records import Figure
from gradus.tasks.config.redaction import hide
from gradus.tasks.formats import interval, terminal_safe

A = TypeVar("A", bound=Mapping[str, object])
_LOOK_MS = 200
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def answer(result: A, as_json: bool, render: Callable[[A], None] | None = None) -> None:
    """Print a verb's result: JSON alone on stdout, or the verb's own view, or a plain list of its fields."""
    with pipe_may_close():
        if as_json:
            sys.stdout.write(json.dumps(result, default=str, allow_nan=False) + "\n")
        elif render is not None:
            render(result)
        else:
            fields(result)


def fields(result: Mapping[str, object]) -> None:
    """One line for each field of a result; the terminal wraps long ones, so that paths in it can be copied."""
    rows = list(_rows(result))
    width = max((cell_len(key) for key, _ in rows), default=0)
    for key, value in rows:
        line(f"{key}{' ' * (width - cell_len(key))}  {safe(in_cell(value))}")


def _rows(result: Mapping[str, object], of: str = "") -> Iterator[tuple[str, object]]:
    """The fields of a result; those of a field that holds mappings under names of their own."""
    for key, value in result.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            yield from _rows(value, f"{of}{key} ")
        else:
            yield f"{of}{key}", value


def in_cell(value: object) -> str:
    """Return a value as people read it; deep ones as compact JSON.

    >>> in_cell({"no answer": 3, "duplicate": 1}), in_cell([]), in_cell(False), in_cell(0.01171875), in_cell(12000)
    ('no answer: 3, duplicate: 1', 'none', 'no', '0.01172', '12,000')
    """
    if isinstance(value, dict | list | tuple):
        return _collected(value)
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case int():
            text = f"{value:,}"
        case float():
            text = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            text = str(value)
    return text


def _collected(values: Mapping[str, object] | Sequence[object]) -> str:
    if isinstance(values, Mapping) and set(values) == {"value", "low", "high"}:
        return interval(cast("Figure", values))
    inner = list(values.values() if isinstance(values, Mapping) else values)
    if not inner:
        return "none"
    if any(isinstance(value, dict | list | tuple) for value in inner):
        return json.dumps(values, default=str)
    texts = [in_cell(value) for value in inner]
    if isinstance(values, Mapping):
        texts = [f"{key}: {text}" for key, text in zip(values, texts, strict=True)]
    return ", ".join(texts)


def table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    """A table whose cells are never read as markup: a policy may have written them."""
    view = Table(title=safe(title) if title else None, title_justify="left", header_style="bold")
    for column in columns:
        view.add_column(safe(column), overflow="fold")
    for row in rows:
        view.add_row(*(safe(str(cell)) for cell in row))
    View().print(view)


def notes(remarks: Iterable[str]) -> None:
    """Print each remark in a line of its own."""
    for remark in remarks:
        line(f"note: {remark}")


def line(text: str) -> None:
    """One plain line, without secrets; the terminal wraps it, so that names in it can be copied."""
    View().print(Text(terminal_safe(hide(text))), soft_wrap=True)


def aside(text: str) -> None:
    """One plain line on stderr, beside the answer; nothing where no progress is to be shown."""
    View(stderr=True, quiet=is_silent()).print(Text(terminal_safe(hide(text))), soft_wrap=True)


def safe(text: str) -> Text:
    """A text that is shown as it is: no markup, no terminal commands, at most 500 characters."""
    return Text(terminal_safe(text)[:500])


@contextlib.contextmanager
def pipe_may_close(interrupt: Callable[[], None] | None = None) -> Generator[None]:
    """End silently if the reader closed the pipe (`| head`); `interrupt` ends what is computed, from a thread."""
    gone = threading.Event()
    try:
        with _watching(gone, interrupt):
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        _end_quietly()
    except Exception:
        if gone.is_set():
            _end_quietly()
        raise


def _end_quietly() -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
    sys.exit(128 + signal.SIGPIPE)


@contextlib.contextmanager
def _watching(gone: threading.Event, interrupt: Callable[[], None] | None) -> Generator[None]:
    """Watch for a closed stdout pipe without writing to it."""
    if interrupt is None or not _is_pipe():
        yield
        return
    over = threading.Event()
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # an error or a hang-up alone

    def watch() -> None:
        while not over.is_set():
            if poll.poll(_LOOK_MS):
                gone.set()
                interrupt()
                over.wait(_LOOK_MS / 1000)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # a test's, or closed
        return False


def silent(wanted: bool) -> AbstractContextManager[None]:
    """Show no progress of the runs in this block, if that is wanted."""
    return during(_silent, wanted)


@contextlib.contextmanager
def during(variable: ContextVar[bool], value: bool) -> Generator[None]:
    """Have a variable of the context this value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def is_silent() -> bool:
    """Return whether no progress is to be shown."""
    return _silent.get()


class View(Console):
    """A console that leaves a closed pipe to `pipe_may_close`."""

    def on_broken_pipe(self) -> None:
        """Let the write fail."""
        raise BrokenPipeError
