"""The option `--partial` of the verbs that read: what is damaged or missing is named under the answer."""

import contextlib
from collections.abc import Generator
from typing import Annotated

import typer

from gradus.data.errors import CorruptArtifactError, OnDamage
from gradus.flows.console.output import aside

Partial = Annotated[
    bool, typer.Option("--partial", help="leave out what is damaged or missing, and name it under the answer")
]


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
