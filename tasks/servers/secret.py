"""The secret of a home: only users who can read its file may use the Prefect and MLflow servers of that home.

The file has mode 0600 and is made once. It reaches servers and clients in their environment, never on a command line.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from gradus.data.errors import StageError

FILE_NAME = "prefect-password"
USER = "gradus"
"""The name under which MLflow, or a browser for it, sends the secret; Prefect wants no name."""


def secret_path(home: Path) -> Path:
    """The file that holds the secret of a home."""
    return home / FILE_NAME


def secret(home: Path) -> str:
    """Return the secret of a home, made at the first call; StageError if another account could know it."""
    path = secret_path(home)
    try:
        return _read(path)
    except FileNotFoundError:
        _make(path)
    return _read(path)


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:  # a symbolic link, or no permission
        raise _refused(f"{path} cannot be read ({error.strerror})") from None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise _refused(f"other accounts can read or replace {path}")
        found = file.read().strip()
    if not found:
        raise _refused(f"{path} is empty")
    return found


def _refused(problem: str) -> StageError:
    return StageError(problem, hint="delete it; the next start makes another")


def _make(path: Path) -> None:
    """Write a new secret under a temporary name, then link it to its own unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
