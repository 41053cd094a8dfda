"""Files of an artifact as they are written: under a temporary name, flushed to disk, renamed, described by a digest."""

import contextlib
import os
from collections.abc import Generator, Iterable
from pathlib import Path

from gradus.data.errors import CorruptArtifactError
from gradus.data.files import replacing
from gradus.data.lake.manifest import CURE, FileEntry, sha256_file
from gradus.data.lake.names import regular_file
from gradus.data.lake.room import check_headroom, disk_errors


@contextlib.contextmanager
def whole_file(folder: Path, name: str) -> Generator[Path]:
    """Return a temporary path; what lies there at the end of the block becomes the file, whole or not at all.

    The name may have a folder before it. BadInputError if the disk is nearly full, StageError if it refuses.
    """
    check_headroom(folder)
    final = folder / name
    with disk_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        with replacing(final, durable=True) as temporary:
            yield temporary


def entry_of(folder: Path, name: str, rows: int | None = None) -> FileEntry:
    """Return what a manifest says of a file."""
    path = folder / name
    return FileEntry(name=name, sha256=sha256_file(path), bytes=path.stat().st_size, rows=rows)


def verified_files(folder: Path, entries: Iterable[FileEntry], cure: str) -> dict[str, Path]:
    """Return the files of a folder from elsewhere by name, each with the bytes that its entry says.

    Raise CorruptArtifactError if one is missing or differs, BadInputError if it is a link.
    """
    found: dict[str, Path] = {}
    for entry in entries:
        try:
            path = regular_file(folder, entry.name)
        except FileNotFoundError:
            raise damaged(folder / entry.name, cure) from None
        if path.stat().st_size != entry.bytes or sha256_file(path) != entry.sha256:
            raise damaged(path, cure)
        found[entry.name] = path
    return found


def size_of(path: Path | str) -> int:
    """Return the bytes of a file; -1 if there is none."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - of many files, and pathlib is slow
    except FileNotFoundError:
        return -1


def damaged(path: Path, cure: str = CURE) -> CorruptArtifactError:
    """Return the error of a file of an artifact that is not the one that its manifest names."""
    what = "does not have the bytes that its manifest names" if path.exists() else "is missing"
    return CorruptArtifactError(f"{path} {what}", hint=cure)
