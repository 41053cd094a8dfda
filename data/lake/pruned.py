"""Files of an artifact that were removed to make room: a note beside its manifest, which still names them.

What was pruned is not corrupt: a reader says so, and what to type to have it back.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import BadInputError
from gradus.data.files import replace_file
from gradus.data.lake.manifest import PRUNED
from gradus.data.lake.names import file_name


@dataclass(frozen=True)
class Pruned:
    """Names of the files that were removed of an artifact, and the day."""

    files: frozenset[str] = frozenset()
    at: str = ""


def read_pruned(folder: Path) -> Pruned:
    """Return what was removed of an artifact; nothing if no note says so or it cannot be read."""
    try:
        body = json.loads((folder / PRUNED).read_bytes())
        return Pruned(frozenset(file_name(str(name)) for name in body["files"]), str(body["at"]))
    except (OSError, ValueError, KeyError, TypeError, BadInputError):
        return Pruned()


def mark_pruned(folder: Path, names: Iterable[str], at: str) -> None:
    """Note the files as removed, then remove them: a reader never misses one that no note names."""
    removed = sorted({*names, *read_pruned(folder).files})
    replace_file(folder / PRUNED, json.dumps({"files": removed, "at": at}), durable=True)
    for name in removed:
        (folder / name).unlink(missing_ok=True)


def mark_restored(folder: Path, names: Iterable[str]) -> None:
    """Note that the files are back."""
    before = read_pruned(folder)
    left = sorted(before.files - set(names))
    if left:
        replace_file(folder / PRUNED, json.dumps({"files": left, "at": before.at}), durable=True)
    else:
        (folder / PRUNED).unlink(missing_ok=True)
