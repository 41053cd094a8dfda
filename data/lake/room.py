"""Room on the disk that a lake lies on."""

import contextlib
import shutil
from collections.abc import Generator
from pathlib import Path

from gradus.data.errors import BadInputError, StageError

HEADROOM_BYTES = 256 * 1024 * 1024
"""A file is not begun with less free disk than this."""


def check_headroom(folder: Path) -> None:
    """Raise BadInputError if the disk of a folder is nearly full."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < HEADROOM_BYTES:
        raise BadInputError(
            f"only {free_bytes / 1e6:.0f} MB are free where {folder} lies",
            hint=f"free at least {HEADROOM_BYTES / 1e6:.0f} MB and run the same command again",
        )


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Raise StageError if the operating system refuses to write a file, or anything below a folder."""
    try:
        yield
    except OSError as error:
        raise StageError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="make room, or make the folder writable, and repeat the command: what is finished is kept",
        ) from None
