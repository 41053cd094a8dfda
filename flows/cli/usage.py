"""The program's verbs, whose refusals of words and numbers are those of the program: short, and in plain words."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup
from typer.exceptions import TyperException

from gradus.data.errors import shortened
from gradus.flows.cli.stage_verbs import installed_verb
from gradus.tasks.stages.registry import installed

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
    found = re.match(r"Input should be a valid (\w+)", message)
    if found:
        return f"it must be {_KINDS.get(found[1], 'another kind of value')}"
    return _LONG.sub(lambda word: shortened(word[0]), message.replace("Input should", "it must"))
