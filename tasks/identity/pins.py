"""Digests of a user's own files, which settings name but do not hold: they are part of a stage's identity.

Left out: files that a reward reads as data.
"""

import hashlib
from pathlib import Path

from gradus.components.chosen import Chosen
from gradus.components.settings import Config
from gradus.data.lake.manifest import sha256_file
from gradus.data.records import JsonObject
from gradus.tasks.config.learning import GivenConfig
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.identity.component_modules import pinned_component
from gradus.tasks.identity.reward_modules import pinned_reward


def pinned(config: Config, *, renew: bool = False, run_rewards: bool = True) -> Config:
    """The settings with the digest of every local file or folder that they name.

    A digest that is there already stays, so that a run keeps to what it began with, unless they shall be renewed.
    What a reward loads is found by running its file in a judge, or else by reading it, as for other components.
    """
    if isinstance(config, GivenConfig) and config.rows and (renew or not config.rows_sha256):
        return config.model_copy(update={"rows_sha256": content_sha256(Path(config.rows))})

    def value_of(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(value_of, value))
        if isinstance(value, RewardConfig) and run_rewards:
            return pinned_reward(value, renew=renew)
        if isinstance(value, Chosen):
            return pinned_component(value, renew=renew) if value.is_users else value
        return pinned(value, renew=renew, run_rewards=run_rewards) if isinstance(value, Config) else value

    found = {name: value_of(getattr(config, name)) for name in _nested(config)}
    changed = {name: value for name, value in found.items() if value != getattr(config, name)}
    return config.model_copy(update=changed) if changed else config


def source_facts(source: str) -> JsonObject:
    """Return a source of problems with the digest of its file or folder: changed content is another source."""
    return {"source": source, "source_sha256": content_sha256(Path(source))}


def _nested(config: Config) -> list[str]:
    """Names of the fields that could hold a component, alone, in a tuple or in settings of their own."""
    values = {name: getattr(config, name) for name in type(config).model_fields}
    return [name for name, value in values.items() if isinstance(value, tuple | Config)]


def content_sha256(path: Path) -> str:
    """Digest of a file, or of the names and contents of a folder's files; empty where there is neither."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        named = [f"{sha256_file(file)} {file.relative_to(path)}" for file in files]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()
    return sha256_file(path) if path.is_file() else ""
