"""A user's component pinned: its file, every other module of the user's that it leads to, and the libraries it imports.

They are found in the source: import statements are followed wherever they stand, nothing is run. For dry runs rewards
are read likewise; otherwise a judge finds what they load (gradus.tasks.identity.reward_modules). What a file loads by
a name that only its run decides fails the stage once (gradus.tasks.identity.loading), is remembered beside the lake,
and counts from the next command on.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from gradus.components.chosen import Chosen, chosen_in
from gradus.components.registry import located, users_file
from gradus.components.settings import Config
from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.manifest import sha256_file
from gradus.models.judging.inspection import add
from gradus.models.rewards.imports import Module, imported_names, is_installed
from gradus.tasks.identity.late_modules import remember_late, remembered
from gradus.tasks.identity.libraries import distributions_of, library_versions
from gradus.tasks.identity.loading import unpinned

C = TypeVar("C", bound=Chosen)


def pinned_component(chosen: C, *, renew: bool = False) -> C:
    """Return a user's component with the digests and versions of what it consists of; those there stay, unless renewed.

    Raise UsageError if the file is not there.
    """
    if chosen.source_sha256 and not renew:
        return chosen
    path, _ = users_file(chosen.name)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="write path/to/file.py:function")
    source = sha256_file(path)
    modules, packages = read_modules(path, _known(source, path.parent))
    pins = {name: module.sha256 for name, module in sorted(modules.items())}
    libraries = library_versions(distributions_of(packages))
    return chosen.model_copy(update={"source_sha256": source, "modules": pins, "libraries": libraries})


def read_modules(path: Path, known: Iterable[tuple[str, Path]]) -> tuple[dict[str, Module], set[str]]:
    """Return the user's modules that a file leads to, and the installed packages that they import; nothing is run.

    `known` are modules that the source does not name, with their files; what those import counts too.
    """
    modules: dict[str, Module] = {}
    packages: set[str] = set()
    queue = [(str(path), "")]
    for name, file in known:
        add(modules, Module(name, str(file), sha256_file(file)))
        queue.append((str(file), ""))
    seen = {file for file, _ in queue}
    while queue:
        for name, file, package in _imports(*queue.pop(), str(path.parent)):
            if is_installed(file):
                packages.add(name.partition(".")[0])
            elif file not in seen and Path(file).is_file():
                seen.add(file)
                add(modules, Module(name, file, sha256_file(Path(file))))
                queue.append((file, package))
    return modules, packages


def refuse_unpinned(config: Config) -> None:
    """Raise BadInputError if a component loaded a module of the user's that the identity does not hold."""
    components = [each for each in chosen_in(config) if each.is_users and each.kind != "reward"]
    late = unpinned(components) if components else {}
    if late:
        for each in components:
            remember_late(each.source_sha256, users_file(each.name)[0].parent, late)
        files = ", ".join(sorted({Path(file).name for file in late.values()}))
        raise BadInputError(
            f"{components[0].label} loaded {files} only while it computed, so the result was not known to depend on "
            "that",
            hint="run the same command again: it counts from the start what was found now",
        )


def _known(source_sha256: str, folder: Path) -> list[tuple[str, Path]]:
    """Return the modules that a file with this content was seen to load, as far as they are still there."""
    found = {**remembered("loaded", source_sha256, folder), **remembered("late", source_sha256, folder)}
    return [(name, file) for name, file in found.items() if file.is_file()]


def _imports(file: str, package: str, folder: str) -> Iterator[tuple[str, str, str]]:
    """Every module that a file imports and that can be found: its name, its file and the package it is in."""
    for name in imported_names(file, package):
        if name.partition(".")[0] in sys.stdlib_module_names:
            continue
        spec = located(name, [folder])
        if spec is not None and spec.origin is not None and spec.has_location:
            yield name, spec.origin, spec.parent or ""
