"""Complete words at the Tab key: runs, recipes, stages and artifacts, by listing folders alone."""

from collections.abc import Callable
from pathlib import Path

from gradus.data.errors import GradusError
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
