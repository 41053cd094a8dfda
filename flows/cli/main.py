"""The `gradus` program: every verb is a flow. Output is a table for people, or with --json one object on stdout.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from gradus.flows.cli.quiet import imported  # first of all: what is imported after it may warn, and be interrupted

# isort: split

import gc
import os
import re
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from gradus.data.errors import GradusError, UsageError, in_words, shortened
from gradus.flows.cli import service_verbs, study_verbs, verbs
from gradus.flows.cli.stage_verbs import installed_verb, stage_verbs
from gradus.flows.environment import prepare
from gradus.flows.library.calling import as_program
from gradus.tasks.config.redaction import hide, hide_in_logs, refuse_credentials
from gradus.tasks.config.settings import Home, check_room
from gradus.tasks.formats import terminal_safe
from gradus.tasks.host.interrupt import SENTENCES, interrupted_by, remember_interrupts, stop_at_once
from gradus.tasks.host.libraries import arrow_without_pandas
from gradus.tasks.preflight.access import prefect_answer
from gradus.tasks.stages.registry import installed

COMPLETING = "_GRADUS_COMPLETE"
"""Set by the shell during completion: nothing may be written when a user presses Tab."""
OBJECTS_A_COLLECTION = 50_000
"""Objects between two searches for cycles, of which the records of a home have none; Python's own is 700."""
MAX_CHARS = 500
"""No sentence of the program is longer, whatever name or value is in it."""


_KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_LONG = re.compile(r"\S{121,}")


class Verbs(TyperGroup):
    """All verbs; what typer says of a wrong word is put into the words of this program."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb; those of installed packages are looked for where there is none of ours."""
        return super().get_command(ctx, cmd_name) or installed_verb(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs."""
        return [*super().list_commands(ctx), *(name for name, stage in installed().items() if stage.verb)]

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the options of the program itself."""
        with _in_our_words():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Read the words of a verb, and run it."""
        with _in_our_words():
            return super().invoke(ctx)


@contextmanager
def _in_our_words() -> Generator[None]:
    try:
        yield
    except TyperException as error:
        message = getattr(error, "message", None)
        if isinstance(message, str):
            setattr(error, "message", plain(message))  # noqa: B010 - only some of typer's errors have one
        raise


def plain(message: str) -> str:
    """Return a message of typer without pydantic's words, and without the middle of a word that is too long.

    >>> plain("Input should be a valid integer, unable to parse string as an integer")
    'it must be a whole number'
    """
    if found := re.match(r"Input should be a valid (\w+)", message):
        return f"it must be {_KINDS.get(found[1], 'another kind of value')}"
    return _LONG.sub(lambda word: shortened(word[0]), message.replace("Input should", "it must"))


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradus {version('gradus')}")
        raise typer.Exit


app = typer.Typer(
    name="gradus",
    cls=Verbs,
    help="Reinforcement learning with verifiable rewards, stage by stage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="say it and stop")
    ] = False,
) -> None:
    """Options of the program itself."""
    del show


for verb in (
    *stage_verbs(),
    *(verbs.train, verbs.demo, verbs.rerun, verbs.show, verbs.why, verbs.sql, verbs.runs),
    *(study_verbs.surface, study_verbs.plan),
    *(verbs.methods, verbs.settings, verbs.new, verbs.report, verbs.browse, verbs.compare),
    *(study_verbs.lab, study_verbs.agree, study_verbs.amend, study_verbs.bisect),
    *(verbs.export, verbs.import_, verbs.prune, verbs.restore),
    *(service_verbs.ui, service_verbs.serve, service_verbs.doctor),
    *(service_verbs.setup, service_verbs.sync, service_verbs.join),
):
    app.command(verb.__name__.rstrip("_"))(verb)
imported()


def main(arguments: list[str] | None = None) -> None:
    """Run the program; every failure is one sentence and a non-zero exit."""
    gc.set_threshold(OBJECTS_A_COLLECTION)
    hide_in_logs()
    remember_interrupts()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        _run(words)
    except BaseException:
        if (number := interrupted_by()) is None:
            raise
        # Whatever it became on its way: typer answers Ctrl-C without a word, and a library may raise something else.
        _say(SENTENCES[number])
        sys.exit(128 + number)
    finally:
        if arguments is None:  # this process ends now: Prefect sends its last events
            stop_at_once()


def _run(words: Sequence[str]) -> None:
    try:
        _refuse_unreadable(words)
        refuse_credentials(words)
        if COMPLETING not in os.environ and words != ["--version"] and "--help" not in words:
            prepare(Home.from_environment())
            arrow_without_pandas()
        with as_program():
            app(list(words), prog_name="gradus")  # says what is wrong with the usage by itself and exits 2
    except (GradusError, OSError) as error:
        if interrupted_by():
            raise
        plain = in_words(error, place=os.environ.get("GRADUS_HOME", ".gradus"))
        _say(f"gradus: {plain}")
        sys.exit(plain.exit_code)
    except Exception as error:
        if interrupted_by():
            raise
        known = prefect_answer(error).sentence or _no_room()
        _say(f"gradus: {known or f'the command ended unexpectedly: {in_words(error)}{_details()}'}")
        sys.exit(1)


def _refuse_unreadable(words: Sequence[str]) -> None:
    """Raise UsageError if a word is not text in UTF-8: it could neither be stored nor sent to a server."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            message = f"the argument {shortened(terminal_safe(word))} is not valid UTF-8"
            raise UsageError(message, hint="rename the file, or retype it") from None


def _say(text: str) -> None:
    shown = shortened(terminal_safe(hide(text)), MAX_CHARS)
    print(shown, file=sys.stderr)  # noqa: T201 - the program's voice


def _no_room() -> str:
    """The sentence if the disk of the home is full, over which a server or a library fails in words of its own."""
    try:
        check_room(Home.from_environment())
    except GradusError as error:
        return str(error)
    return ""


def _details() -> str:
    """Keep the traceback of the error that is being handled, and say where; nothing if it cannot be written."""
    try:
        path = Home.from_environment().root / "errors" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(hide(traceback.format_exc()), encoding="utf-8", errors="backslashreplace")
    except (OSError, GradusError):
        return ""
    return f"; the details are in {path}"


if __name__ == "__main__":
    main()
