"""Every component by kind and name: ours, those of installed packages, and a user's `path/to/file.py:function`.

    find("advantage", "grpo").settings(std_eps=1e-6)
    find("filter", "mine.py:short")              # a function of a user's file
    function_of(find("advantage", "grpo"))       # imports its module

Ours are the decorated functions in the folder of their kind and its subfolders; a new file there is found, no table
names it. Those of installed packages are entry points of the group `gradus.KIND`:

    [project.entry-points."gradus.filter"]
    short = "my_package.filters:short"
"""

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gradus
from gradus.components import Kind
from gradus.components.description import Component, DescriptionError, described, function_in

_PLACES: Mapping[Kind, tuple[str, str]] = {
    "filter": ("data/curation/filters", "curate.filters.0"),
    "ranking": ("data/curation/rankings", "curate.rank"),
    "sampler": ("data/curation/samplers", "curate.sampler"),
    "hint": ("data/hints/strategies", "hint.strategy"),
    "wave": ("data/curation/waves", "waves.0"),
    "tracker": ("data/curation/trackers", "trackers.0"),
    "measure": ("models/measures", "measures.0"),
    "reward": ("models/rewards/judges", "score.rewards.0"),
    "shape": ("data/curation/shapes", "update.shapes.0"),
    "advantage": ("models/objectives/advantages", "update.advantage"),
    "loss": ("models/objectives/losses", "update.loss"),
    "aggregation": ("models/objectives/aggregations", "update.aggregation"),
    "correction": ("models/objectives/corrections", "update.correction"),
    "weight": ("models/objectives/weights", "update.weights.0"),
    "optimizer": ("models/training/optimizers", "update.optimizer"),
    "schedule": ("data/schedules", "schedules"),
}
FOLDERS: Mapping[Kind, str] = {kind: folder for kind, (folder, _) in _PLACES.items()}
"""Folder of our own components of a kind."""
SETTINGS: Mapping[Kind, str] = {kind: setting for kind, (_, setting) in _PLACES.items()}
"""The setting of a recipe that names a component of a kind; behind a list of them stands .0."""

ROOT = Path(gradus.__file__).parent


class UnknownComponentError(ValueError):
    """No component has this kind and name."""


def is_users(name: str) -> bool:
    """Return whether a name is path/to/file.py:function."""
    path, colon, _ = name.rpartition(":")
    return bool(colon) and path.endswith(".py")


def users_file(name: str) -> tuple[Path, str]:
    """Return file and function of path/to/file.py:function."""
    path, _, function = name.rpartition(":")
    return Path(path).expanduser().resolve(), function


def find(kind: Kind, name: str) -> Component:
    """Return a component; raise UnknownComponentError for a name, DescriptionError for a file that cannot be used."""
    if is_users(name):
        return replace(function_in(*users_file(name), kind), name=name)
    if (ours := _ours(kind, name)) is not None:
        return ours
    for point in entry_points(f"gradus.{kind}"):
        if point.name == name:
            return _installed(kind, point)
    raise UnknownComponentError(f"there is no {kind} {name!r}")


def components(kind: Kind) -> dict[str, Component]:
    """Return every component of a kind by name, ours first."""
    declared = (each for file in _files(kind) if "@component" in _text(file) for each in _declared(file))
    found = {each.name: each for each in declared if each.kind == kind}
    for point in entry_points(f"gradus.{kind}"):
        if point.name not in found:
            found[point.name] = _installed(kind, point)
    return found


def function_of(component: Component) -> Callable[..., Any]:
    """Import the module of a component of ours or of an installed package and return its function."""
    return getattr(importlib.import_module(component.module), component.function)


def located(module: str, folders: list[str] | None = None) -> ModuleSpec | None:
    """Return where a module lies, these folders first, without running its packages as find_spec of importlib does."""
    path, spec = None, None
    for end in range(1, module.count(".") + 2):
        name = ".".join(module.split(".")[:end])
        spec = (PathFinder.find_spec(name, folders) if folders and path is None else None) or _found(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _found(name: str, path: list[str] | None) -> ModuleSpec | None:
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in (finder.find_spec(name, path) for finder in finders) if spec is not None), None)


@cache
def _ours(kind: Kind, name: str) -> Component | None:
    declared = re.compile(rf"^def {re.escape(name)}\(|\bname=\"{re.escape(name)}\"", re.MULTILINE)
    for file in _files(kind):
        text = _text(file)
        if "@component" in text and declared.search(text):
            for each in _declared(file):
                if (each.kind, each.name) == (kind, name):
                    return each
    return None


@cache
def _declared(file: Path) -> list[Component]:
    module = ".".join(("gradus", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    return [replace(each, module=module) for each in described(file)]


def _files(kind: Kind) -> list[Path]:
    return sorted((ROOT / FOLDERS[kind]).rglob("*.py"))


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of installed packages in a group `gradus.…`; the packages are read once, in 10 ms."""
    return _by_group(tuple(sys.path)).get(group, ())


@cache
def _by_group(_path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    found = importlib.metadata.entry_points()
    return {group: tuple(found.select(group=group)) for group in found.groups if group.startswith("gradus.")}


@cache
def _installed(kind: Kind, point: EntryPoint) -> Component:
    """A component of an installed package, found without importing it."""
    spec = located(point.module)
    named = f"{point.value} (entry point {point.name} of gradus.{kind})"
    if spec is None or spec.origin is None:
        raise DescriptionError(f"{named}: there is no module {point.module}")
    distribution = point.dist.name if point.dist is not None else ""
    found = function_in(Path(spec.origin), point.attr, kind)
    return replace(found, name=point.name, module=point.module, distribution=distribution)
