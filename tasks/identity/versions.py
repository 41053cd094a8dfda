"""The versions of our own code that a stage's settings name, and of the libraries that decide a result.

    code_identity(UpdateConfig())     # {"advantage/grpo": "1 43ef...", "loss/clip": "1 9ac0...", ...}

They are part of the stage's identity, beside the version of the stage itself (gradus.tasks.stages.registry). That of a
component of ours is its version and the digest of its source (gradus.components.digest). A user's own file counts
by its content (gradus.tasks.identity.pins), an installed component by the version of its package.
"""

from collections.abc import Iterator

from gradus.components.chosen import chosen_in
from gradus.components.description import Component, DescriptionError
from gradus.components.digest import code_digest
from gradus.components.settings import Config
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.identity.libraries import library_versions

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
