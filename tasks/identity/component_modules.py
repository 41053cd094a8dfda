"""A user's component pinned: its file, every other module of the user's that it leads to, and the libraries it imports.

They are found in the source: import statements are followed wherever they stand, nothing is run. What a file loads by
a name that only its run decides fails the stage once (gradus.tasks.identity.loading), is remembered beside the lake,
and counts from the next command on.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from gradus.components.registry import located, users_file
from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.manifest import sha256_file
from gradus.models.judging.inspection import add
from gradus.models.rewards.imports import Module, imported_names, is_installed
from gradus.tasks.config.base import Config
from gradus.tasks.config.components import Chosen, chosen_in
from gradus.tasks.identity.libraries import distributions_of, library_versions
from gradus.tasks.identity.loading import unpinned
from gradus.tasks.identity.reward_modules import remember, remembered


def pinned_component(chosen: Chosen, *, renew: bool = False) -> Chosen:
    """Return a user's component with the digests and versions of what it consists of; those there stay, unless renewed.

    Raise UsageError if the file is not there.
    """
    if chosen.source_sha256 and not renew:
        return chosen
    path, _ = users_file(chosen.name)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="write path/to/file.py:function")
    source = sha256_file(path)
    modules: dict[str, Module] = {}
    packages: set[str] = set()
    queue = [(str(path), "")]
    queue += [(str(file), "") for file in _late(modules, source, path.parent)]
    seen = {file for file, _ in queue}
    while queue:
        for name, file, package in _imports(*queue.pop(), str(path.parent)):
            if is_installed(file):
                packages.add(name.partition(".")[0])
            elif file not in seen:
                seen.add(file)
                add(modules, Module(name, file, sha256_file(Path(file))))
                queue.append((file, package))
    pins = {name: module.sha256 for name, module in sorted(modules.items())}
    libraries = library_versions(distributions_of(packages))
    return chosen.model_copy(update={"source_sha256": source, "modules": pins, "libraries": libraries})


def refuse_unpinned(config: Config) -> None:
    """Raise BadInputError if a component loaded a module of the user's that the identity does not hold."""
    components = [each for each in chosen_in(config) if each.is_users and each.kind != "reward"]
    late = unpinned(components) if components else {}
    if late:
        for each in components:
            remember(each.source_sha256, users_file(each.name)[0].parent, late)
        files = ", ".join(sorted({Path(file).name for file in late.values()}))
        raise BadInputError(
            f"{components[0].label} loaded {files} only while it computed, so the result was not known to depend on "
            "that",
            hint="run the same command again: it counts from the start what was found now",
        )


def _late(modules: dict[str, Module], source_sha256: str, folder: Path) -> Iterator[Path]:
    """Enter what a file with this content was seen to load late, and yield the files."""
    for name, file in remembered(source_sha256, folder).items():
        if file.is_file():
            add(modules, Module(name, str(file), sha256_file(file)))
            yield file


def _imports(file: str, package: str, folder: str) -> Iterator[tuple[str, str, str]]:
    """Every module that a file imports and that can be found: its name, its file and the package it is in."""
    for name in imported_names(file, package):
        if name.partition(".")[0] in sys.stdlib_module_names:
            continue
        spec = located(name, [folder])
        if spec is not None and spec.origin is not None and spec.has_location:
            yield name, spec.origin, spec.parent or ""
