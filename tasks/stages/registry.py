"""Every stage by name: ours, and those of installed packages, which are entry points of the group `gradus.stages`.

    [project.entry-points."gradus.stages"]
    echo = "my_package.declaration:ECHO"

Light on purpose: nothing here imports what a stage computes with, so that flows may read it.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint

from gradus.components.registry import entry_points
from gradus.components.stage import CHECKPOINTS, Stage, named_object
from gradus.data.errors import BadInputError, UsageError, in_words
from gradus.data.lake.schema import TABLES
from gradus.data.nearest import did_you_mean
from gradus.tasks.config.curation import CURATE, DIFFICULTY, HINT, INGEST
from gradus.tasks.config.learning import GRADIENT, UPDATE, WARMSTART
from gradus.tasks.config.rollout import ROLLOUT, WAVE
from gradus.tasks.config.rounds import MEASURE, SHAPE, TRACKER
from gradus.tasks.config.score import EVALUATE, SCORE

STAGES = {
    each.name: each
    for each in (
        *(INGEST, CURATE, HINT, WAVE, ROLLOUT, SCORE, DIFFICULTY, TRACKER, MEASURE),
        *(SHAPE, UPDATE, GRADIENT, WARMSTART, EVALUATE),
    )
}
"""Our own."""


def stage_spec(name: str) -> Stage:
    """Return the stage of that name; raise UsageError with those nearest to it, BadInputError for a broken package."""
    if name in STAGES:
        return STAGES[name]
    for point in _points():
        if point.name == name:
            return _installed(point)
    known = [*STAGES, *installed_names()]
    listed = f"the stages are {', '.join(known)}; one of a package needs the package installed"
    raise UsageError(f"there is no stage {name!r}", hint=did_you_mean(name, known, listed))


def installed_names() -> list[str]:
    """Return the names of the stages that installed packages declare; nothing is imported."""
    return [point.name for point in _points()]


def installed() -> Mapping[str, Stage]:
    """Return the stages of installed packages by name; those of a broken package are left out."""
    found: dict[str, Stage] = {}
    for point in _points():
        try:
            found[point.name] = _installed(point)
        except BadInputError:
            continue
    return found


def stages() -> dict[str, Stage]:
    """Return all stages, ours first."""
    return {**STAGES, **installed()}


def _points() -> tuple[EntryPoint, ...]:
    return tuple(point for point in entry_points("gradus.stages") if point.name not in STAGES)


@cache
def _installed(point: EntryPoint) -> Stage:
    """Import the declaration of a stage, and make its table one of the lake's."""
    package = point.dist.name if point.dist is not None else point.module
    try:
        found = replace(point.load(), name=point.name, distribution=package)
        if found.table:
            TABLES[found.makes] = named_object(found.table)
        why = "" if found.makes in (*TABLES, CHECKPOINTS) else f"the lake has no table {found.makes}"
    except Exception as error:  # noqa: BLE001 - whatever a package raises
        found, why = None, str(in_words(error))
    if found is None or why:
        raise BadInputError(
            f"the package {package} is broken: its stage {point.name} cannot be read: {why}",
            hint=f"correct the package, or remove it with `pip uninstall {package}`",
        )
    return found
