"""What settings name but do not hold, a person's own files: their digests make them part of a stage's identity.

Left out: files that a reward reads as data.
"""

import hashlib
from pathlib import Path

from gradus.data.lake.manifest import sha256_file
from gradus.tasks.config.base import Config
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.identity.reward_modules import pinned_reward


def pinned(config: Config, *, renew: bool = False) -> Config:
    """The settings with the digest of every local file or folder that they name.

    A digest that is there already stays, so that a run keeps to what it began with, unless they shall be renewed.
    """
    if isinstance(config, IngestConfig) and (renew or not config.source_sha256):
        return config.model_copy(update={"source_sha256": content_sha256(Path(config.source))})
    if isinstance(config, ScoreConfig):
        return config.model_copy(update={"rewards": tuple(pinned_reward(r, renew=renew) for r in config.rewards)})
    return config


def content_sha256(path: Path) -> str:
    """Digest of a file, or of the names and contents of a folder's files; empty where there is neither."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        named = [f"{sha256_file(file)} {file.relative_to(path)}" for file in files]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()
    return sha256_file(path) if path.is_file() else ""
