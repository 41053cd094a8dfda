"""The versions of our own code that a stage's settings name, and of the libraries that decide a result.

    code_identity(UpdateConfig())     # {"advantage/grpo": "1 43ef...", "loss/clip": "1 9ac0...", ...}

They are part of the stage's identity, beside the version of the stage itself (gradus.tasks.stages.registry). That of a
component of ours is its version and the digest of its source (gradus.components.digest). A user's own file counts
by its content (gradus.tasks.identity.pins), an installed component by the version of its package.
"""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError

from gradus.components.chosen import chosen_in
from gradus.components.description import Component, DescriptionError
from gradus.components.digest import code_digest
from gradus.components.settings import Config
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.imports import Distributions

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
    for component in _registered(config):
        if component.distribution:
            libraries.append(component.distribution)
        else:
            found[f"{component.kind}/{component.name}"] = f"{component.version} {code_digest(component)}"
        libraries += component.libraries
    return {**found, **{f"library/{name}": version for name, version in library_versions(libraries).items()}}


def _registered(config: Config) -> Iterator[Component]:
    """The components that settings name, those of users' files left out."""
    for chosen in chosen_in(config):
        if not chosen.is_users:
            try:
                yield chosen.component
            except DescriptionError:  # an installed package whose source cannot be read; the checks refuse it
                continue


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
