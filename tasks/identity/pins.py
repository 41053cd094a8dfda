"""Digests of a user's own files, which settings name but do not hold: they are part of a stage's identity.

A component or reward of a user's counts by its file, by every other module of the user's that the file leads to, and by
the versions of the libraries that those import (gradus.components.user_modules); nothing is run to find them.
Left out: files that a component reads as data.
"""

import hashlib
from pathlib import Path
from typing import TypeVar

from gradus.components.chosen import Chosen
from gradus.components.registry import users_file
from gradus.components.settings import Config
from gradus.components.user_modules import modules_of
from gradus.data.errors import UsageError
from gradus.data.lake.manifest import sha256_file
from gradus.data.records import JsonObject
from gradus.tasks.config.redaction import check_seen_variables
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.identity.versions import distributions_of, library_versions

C = TypeVar("C", bound=Chosen)


def pinned(config: Config, *, renew: bool = False) -> Config:
    """The settings with the digest of every local file or folder that they name.

    A digest that is there already stays, so that a run keeps to what it began with, unless they shall be renewed.
    """

    def value_of(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(value_of, value))
        if isinstance(value, dict):
            return {name: value_of(part) for name, part in value.items()}
        if isinstance(value, Chosen):
            return pinned_component(value, renew=renew)
        return pinned(value, renew=renew) if isinstance(value, Config) else value

    values = {name: getattr(config, name) for name in type(config).model_fields}
    changed = {name: found for name, value in values.items() if (found := value_of(value)) != value}
    return config.model_copy(update=changed) if changed else config


def pinned_component(chosen: C, *, renew: bool = False) -> C:
    """Return a user's component with the digests and versions of what it consists of; others as they are.

    Raise UsageError if the file is not there, or a variable of a reward is not set.
    """
    if isinstance(chosen, RewardConfig):
        check_seen_variables(chosen.variables, f"{chosen.label}: variables")
    if not chosen.is_users or (chosen.source_sha256 and not renew):
        return chosen
    path, _ = users_file(chosen.name)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="write path/to/file.py:function")
    modules, packages = modules_of(path)
    pins = {name: module.sha256 for name, module in sorted(modules.items())}
    libraries = library_versions(distributions_of(packages))
    return chosen.model_copy(update={"source_sha256": sha256_file(path), "modules": pins, "libraries": libraries})


def source_facts(source: str) -> JsonObject:
    """Return a source of problems with the digest of its file or folder: changed content is another source."""
    return {"source": source, "source_sha256": content_sha256(Path(source))}


def content_sha256(path: Path) -> str:
    """Digest of a file, or of the names and contents of a folder's files; empty where there is neither."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        named = [f"{sha256_file(file)} {file.relative_to(path)}" for file in files]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()
    return sha256_file(path) if path.is_file() else ""
