"""Files of an artifact as they are written: under a temporary name, flushed to disk, renamed, described by a digest."""

import contextlib
from collections.abc import Generator
from pathlib import Path

from gradus.data.files import replacing
from gradus.data.lake.manifest import FileEntry, sha256_file
from gradus.data.lake.room import check_headroom, disk_errors


@contextlib.contextmanager
def whole_file(folder: Path, name: str) -> Generator[Path]:
    """Return a temporary path; what lies there at the end of the block becomes the file, whole or not at all.

    The name may have a folder before it. BadInputError if the disk is nearly full, StageError if it refuses.
    """
    check_headroom(folder)
    final = folder / name
    with disk_errors(final):
        final.parent.mkdir(exist_ok=True)
        with replacing(final, durable=True) as temporary:
            yield temporary


def entry_of(folder: Path, name: str, rows: int | None = None) -> FileEntry:
    """Return what a manifest says of a file."""
    path = folder / name
    return FileEntry(name=name, sha256=sha256_file(path), bytes=path.stat().st_size, rows=rows)
