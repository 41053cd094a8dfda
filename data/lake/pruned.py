"""Weights of a checkpoint that were removed to make room: its manifest names them, and they are not there.

Whoever removed them, they are not corrupt: a reader says so, and what to type to have them back.
"""

from collections.abc import Iterable
from datetime import date
from pathlib import Path

from gradus.data.lake.manifest import FileEntry

POINTER = "train_state.json"
"""The file of a checkpoint that names its train state; a policy from elsewhere has none, and cannot be restored."""


def weight_files(files: Iterable[FileEntry]) -> list[FileEntry]:
    """Return the weights among the files of a checkpoint that an update made; none of any other artifact."""
    listed = list(files)
    trained = any(entry.name == POINTER for entry in listed)
    return [entry for entry in listed if trained and entry.name.endswith(".safetensors")]


def pruned_files(folder: Path, files: Iterable[FileEntry]) -> frozenset[str]:
    """Return the names of the weights that are not in the folder of an artifact of these files."""
    return frozenset(entry.name for entry in weight_files(files) if not (folder / entry.name).exists())


def removed_on(folder: Path) -> str:
    """Return the day on which a file was last added to a folder or removed: a finished artifact has no other change."""
    return date.fromtimestamp(folder.stat().st_mtime).isoformat()
