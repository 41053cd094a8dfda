"""The code in a stage's identity: versions of ours and of libraries, digests of a user's own files.

    code_identity(UpdateConfig())     # {"advantage/grpo": "1 43ef...", "loss/clip": "1 9ac0...", ...}
    pinned(config)                    # the settings with the digest of every local file that they name

All of it is part of the identity, beside the version of the stage itself (gradus.tasks.stages.registry). A component of
ours counts by its version and the digest of its source (gradus.components.digest), an installed one by the version of
its package. A component or reward of a user's counts by its file, by every other module of the user's that the file
leads to, and by the versions of the libraries that those import (gradus.components.user_modules); nothing is run to
find them. Left out: files that a component reads as data.
"""

import hashlib
import importlib.metadata
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TypeVar

from gradus.components.chosen import Chosen, chosen_in
from gradus.components.description import DescriptionError
from gradus.components.digest import code_digest
from gradus.components.registry import users_file
from gradus.components.settings import Config
from gradus.components.user_modules import modules_of
from gradus.data.errors import UsageError
from gradus.data.lake.manifest import sha256_file
from gradus.data.records import JsonObject
from gradus.tasks.config.redaction import check_seen_variables
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.host.libraries import Distributions

SHARED = {"shared/store": 1}
"""Part of every stage's identity: how artifacts are written and read."""

ENGINES = {"transformers": 1, "vllm": 1, "openai": 1}


def code_identity(config: Config, distribution: str = "") -> dict[str, str]:
    """Return what a stage's identity holds of code: versions of the components that settings name, and of libraries.

    `distribution` is the package that declares the stage, if it is none of ours.
    """
    found = {label: str(version) for label, version in SHARED.items()}
    if isinstance(config, RolloutConfig):
        found[f"engine/{config.engine}"] = str(ENGINES[config.engine])
    libraries = [distribution] if distribution else []
    for chosen in chosen_in(config):
        if chosen.is_users:
            continue
        try:
            component = chosen.component
        except DescriptionError:  # an installed package whose source cannot be read; the checks refuse it
            continue
        if component.distribution:
            libraries.append(component.distribution)
        else:
            found[f"{component.kind}/{component.name}"] = f"{component.version} {code_digest(component)}"
        libraries += component.libraries
    return {**found, **{f"library/{name}": version for name, version in library_versions(libraries).items()}}


def library_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Version of every distribution and of what it requires, directly or not; what is not installed is left out.

    >>> sorted(library_versions(["latex2sympy2_extended"]))
    ['antlr4-python3-runtime', 'latex2sympy2-extended', 'mpmath', 'sympy']
    """
    found: dict[str, str] = {}
    queue = [_normal(name) for name in distributions]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        try:
            found[name], required = installed(name)
        except PackageNotFoundError:
            continue
        queue += required
    return dict(sorted(found.items()))


@cache
def installed(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the version of a distribution, and what it requires; read once, as its modules are imported once."""
    required = importlib.metadata.requires(name) or ()
    return importlib.metadata.version(name), tuple(_normal(each) for each in required if "extra ==" not in each)


def distributions_of(packages: Iterable[str]) -> list[str]:
    """The distributions that installed the packages of these import names; Gradus and unknown ones are left out."""
    known = Distributions()
    return sorted({_normal(name) for package in packages for name in known.get(package, ())} - {"gradus"})


def _normal(requirement: str) -> str:
    """A requirement's name as PEP 503 writes it, without version and markers."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", name.group() if name else "").lower()


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
