"""A call of the library: by the program, which has prepared its process, or as a guest in a process of the user's.

    @call
    def hint(problems: Input) -> Artifact:
        with computing() as ready:
            from gradus.flows import stages
            ready()
            return made(stages.hint(named(problems)))

A guest leaves environment variables, signal handlers, logging and the settings of other libraries as it found them,
releases Prefect's server, and prints nothing unless `progress` asks for it. A signal reaches the handler that was
there once the run is closed. Calls of several threads take turns, since they share the environment.
"""

import contextlib
import functools
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from gradus.data.errors import GradusError, StageError, in_words
from gradus.flows.console.output import during, silent
from gradus.flows.environment import api, kept_environment, prepare
from gradus.tasks.config.redaction import clean_log_records, hide, refuse_credentials
from gradus.tasks.config.settings import Home
from gradus.tasks.host.home_folder import open_home
from gradus.tasks.host.interrupt import SENTENCES, forget_interrupts, remember_interrupts
from gradus.tasks.host.libraries import heed_setting_files
from gradus.tasks.preflight.access import prefect_answer

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")

_by_program: ContextVar[bool] = ContextVar("by_program", default=False)
_shown: ContextVar[bool] = ContextVar("shown", default=False)
_TURN = threading.RLock()


def as_program() -> AbstractContextManager[None]:
    """Have the calls in this block be those of the program, which is prepared and answers for its own process."""
    return during(_by_program, True)


def progress() -> AbstractContextManager[None]:
    """Show the progress of the calls in this block on stderr, as the command line does."""
    return during(_shown, True)


def call(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function one that a user's process may call: it raises GradusError for all that a user can mend."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _by_program.get():
            return function(*args, **kwargs)
        handled = sys.exception()
        try:
            refuse_credentials([text for value in (*args, *kwargs.values()) for text in _texts(value)])
            open_home(Home.from_environment())
            return function(*args, **kwargs)
        except (GradusError, OSError) as error:
            plain = in_words(error, place=os.environ.get("GRADUS_HOME", ".gradus"))
            _let_go(error, handled)
            raise type(plain)(hide(plain.message), hint=hide(plain.hint)) from None  # the sentence says it all
        except KeyboardInterrupt as stopped:
            _let_go(stopped, handled)
            raise KeyboardInterrupt from None

    return run


def call_of(ask: Callable[P, A]) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Make a function of what `ask` returns a call that takes the arguments of `ask` instead."""

    def of(function: Callable[[A], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(ask(*args, **kwargs))

        result = inspect.signature(function).return_annotation
        run.__signature__ = inspect.signature(ask).replace(return_annotation=result)  # pyright: ignore[reportAttributeAccessIssue]
        return call(run)

    return of


@contextlib.contextmanager
def working() -> Generator[None]:
    """Leave a guest's process as it was after a call that starts processes of its own."""
    if _by_program.get():
        yield
        return
    with _TURN, kept_environment(), _logging(), _interrupts(), silent(not _shown.get()):
        prepare(Home.from_environment())
        try:
            yield
        finally:
            heed_setting_files()


@contextlib.contextmanager
def computing() -> Generator[Callable[[], None]]:
    """Provide what a call needs that runs flows, as gradus.flows.environment.api does."""
    if _by_program.get():
        with api() as ready:
            yield ready
        return
    with working():
        try:
            with api(guest=True) as ready:
                yield ready
        except GradusError:
            raise
        except Exception as error:
            if sentence := prefect_answer(error).sentence:
                raise StageError(sentence) from error
            raise


def run_flow(flow: str, **given: object) -> Any:
    """Run a flow of gradus.flows, `module:name`; Prefect, which a wrong argument need not wait for, is imported now."""
    module, _, name = flow.partition(":")
    with computing() as ready:
        found = getattr(import_module(f"gradus.flows.{module}"), name)
        ready()
        return found(**given)


def _let_go(error: BaseException, handled: BaseException | None) -> None:
    """Take the tracebacks off an error that Prefect keeps: by their frames it would keep the caller's variables too.

    `handled` is an error of the caller's own, which was being handled when the call began.
    """
    found: BaseException | None = error
    while found is not None and found is not handled:
        found.__traceback__ = None
        found = found.__context__


def _texts(value: object) -> Iterator[str]:
    """The texts of an argument, also those in lists and mappings."""
    match value:
        case str() | os.PathLike():
            yield str(os.fspath(value))
        case Mapping():
            for inner in value.values():
                yield from _texts(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)
        case _:
            pass


@contextlib.contextmanager
def _logging() -> Generator[None]:
    """Clean log records in this block, leave out those of each request, undo what Prefect does to the root logger."""
    root, requests, make_record = logging.getLogger(), logging.getLogger("httpx"), logging.getLogRecordFactory()
    handlers, levels = root.handlers[:], {each: each.level for each in (root, requests)}
    clean_log_records()
    requests.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make_record)
        root.handlers[:] = handlers
        for each, level in levels.items():
            each.setLevel(level)


@contextlib.contextmanager
def _interrupts() -> Generator[None]:
    """Raise KeyboardInterrupt at a signal in this block; the handler that was there gets the signal at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SENTENCES}
    remember_interrupts()
    for number, handler in before.items():
        if handler == signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        came = forget_interrupts()
        for number, handler in before.items():
            signal.signal(number, handler)
        if came is not None:
            signal.raise_signal(came)
