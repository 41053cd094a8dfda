"""Files of an artifact as they are written: under a temporary name, flushed to disk, renamed, described by a digest."""

import contextlib
import os
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path

from gradus.data.errors import BadInputError, CorruptArtifactError, StageError
from gradus.data.files import replacing
from gradus.data.lake.manifest import CURE, FileEntry, sha256_file
from gradus.data.lake.names import regular_file

HEADROOM_BYTES = 256 * 1024 * 1024
"""A file is not begun with less free disk than this."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Raise StageError if the operating system refuses to write a file, or anything below a folder."""
    try:
        yield
    except OSError as error:
        hint = "make room, or make the folder writable, and repeat the command: what is finished is kept"
        raise StageError(f"{path} cannot be written: {error.strerror or error}", hint=hint) from None


@contextlib.contextmanager
def whole_file(folder: Path, name: str) -> Generator[Path]:
    """Return a temporary path; what lies there at the end of the block becomes the file, whole or not at all.

    The name may have a folder before it. BadInputError if the disk is nearly full, StageError if it refuses.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < HEADROOM_BYTES:
        message = f"only {free_bytes / 1e6:.0f} MB are free where {folder} lies"
        raise BadInputError(message, hint=f"free at least {HEADROOM_BYTES / 1e6:.0f} MB and run the same command again")
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
