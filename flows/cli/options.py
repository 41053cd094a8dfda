"""Options that several verbs have, and what completes their words at the Tab key, by listing folders alone."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated

import typer

from gradus.data.errors import CorruptArtifactError, GradusError, OnDamage
from gradus.flows.console.output import aside
from gradus.flows.recipe.config import RECIPES
from gradus.flows.recipe.overlays import overlay_files
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import artifacts_of
from gradus.tasks.runs.history import run_names
from gradus.tasks.stages import registry

Complete = Callable[[str], list[str]]


def runs(incomplete: str) -> list[str]:
    """Names of runs."""
    home = _home()
    return _beginning(incomplete, run_names(home.runs)) if home else []


def recipes(incomplete: str) -> list[str]:
    """Bundled recipes and the files beside them that one could be."""
    files = [str(path) for path in Path().glob("*.toml")]
    return _beginning(incomplete, [*(path.stem for path in RECIPES.glob("*.toml")), *files])


def methods(incomplete: str) -> list[str]:
    """Methods that can be laid over a recipe; of `a+b` the last."""
    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in _beginning(last, list(overlay_files()))]


def recipes_and_runs(incomplete: str) -> list[str]:
    """Recipes, then names of runs."""
    return [*recipes(incomplete), *runs(incomplete)]


def stages(incomplete: str) -> list[str]:
    """Names of stages."""
    return _beginning(incomplete, list(registry.stages()))


def artifacts(table: str) -> Complete:
    """Return artifacts of a table; nothing if the word can be none of them, so that the shell offers files."""

    def complete(incomplete: str) -> list[str]:
        home = _home()
        return _beginning(incomplete, artifacts_of(home.lake, table)) if home and incomplete else []

    return complete


def _home() -> Home | None:
    """Return the home; None if the environment names one that cannot be used."""
    try:
        return Home.from_environment()
    except (GradusError, OSError):
        return None


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="a setting of the stage, key=value; repeatable")]
Maps = Annotated[list[str] | None, typer.Option("--map", help="rename a column, ours=theirs; repeatable")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be computed, why, and its cost; start nothing")]
KnownRun = Annotated[
    str, typer.Argument(help="a run, or the beginning of its name (`gradus runs`)", autocompletion=runs)
]
Partial = Annotated[
    bool, typer.Option("--partial", help="leave out what is damaged or missing, and name it under the answer")
]


NoWait = Annotated[bool, typer.Option("--no-wait", help="fail where another command computes the same artifact")]


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


def may_wait(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the option --no-wait, which forbids waiting for other commands (GRADUS_NO_WAIT)."""

    @functools.wraps(verb)
    def run(*, no_wait: bool = False, **given: object) -> None:
        if no_wait:
            os.environ["GRADUS_NO_WAIT"] = "1"
        verb(**given)

    known = inspect.signature(verb)
    option = inspect.Parameter("no_wait", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=NoWait)
    run.__annotations__ = {**verb.__annotations__, "no_wait": NoWait}
    run.__signature__ = known.replace(parameters=[*known.parameters.values(), option])  # pyright: ignore[reportAttributeAccessIssue]
    return run
