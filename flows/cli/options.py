"""Options that several verbs have, and the options that a verb takes from the call behind it."""

import contextlib
import functools
import os
from collections.abc import Callable, Generator
from typing import Annotated, Any

import typer

from gradus.components.stage import take_parameters
from gradus.data.errors import CorruptArtifactError, OnDamage
from gradus.flows.console.output import aside
from gradus.flows.parameters import KNOWN_RUN, Taken, own_parameters, taking_those_of


def shown(taken: Taken) -> Any:
    """Return the option or the argument that takes a parameter."""
    if taken.argument:
        return typer.Argument(help=taken.doc, autocompletion=taken.complete)
    flags = taken.flag.split()
    return typer.Option(*flags, min=taken.least, max=taken.most, help=taken.doc, autocompletion=taken.complete)


AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be computed, why, and its cost; start nothing")]
KnownRun = Annotated[str, shown(KNOWN_RUN)]
Partial = Annotated[
    bool, typer.Option("--partial", help="leave out what is damaged or missing, and name it under the answer")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="fail instead of waiting for another command")]


@contextlib.contextmanager
def damage(partial: bool) -> Generator[OnDamage]:
    """Yield what readers do about damage: raise it, or at the end of the block say what was left out."""
    found: dict[str, None] = {}

    def note(each: CorruptArtifactError) -> None:
        if not partial:
            raise CorruptArtifactError(each.message, hint=f"{each.hint}; --partial leaves it out".removeprefix("; "))
        found[str(each)] = None

    yield note
    for text in found:
        aside(f"left out: {text}")


def options_of(call: Callable[..., Any], *left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a verb take the parameters of a call as options, then its own."""
    return lambda verb: taking_those_of(call, verb, lambda _, kind, taken: Annotated[kind, shown(taken)], *left_out)


def may_wait(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the option --no-wait, which forbids waiting for other commands (GRADUS_NO_WAIT)."""

    @functools.wraps(verb)
    def run(*, no_wait: bool = False, **given: object) -> None:
        if no_wait:
            os.environ["GRADUS_NO_WAIT"] = "1"
        verb(**given)

    take_parameters(run, {**own_parameters(verb), "no_wait": (NoWait, False)})
    return run
