"""The folder of a home: only its owner can look into it, and one that came with other files is not used; its secret.

    open_home(Home.from_environment())
    secret(home)        # a file of mode 0600, made once; who can read it may use the servers of that home

A `.gradus` in the current folder may be part of an archive, a clone or a shared disk, with databases that name code to
run and a secret that its author knows. So a home carries a mark that no archive can: the change time of one of
its files, which the file system sets and no program can choose. A home that GRADUS_HOME names is used, and marked,
whatever it is: naming it is the user's consent. Not covered: file systems that let a program set that time.
The secret reaches servers and clients in their environment, never on a command line.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from gradus.data.errors import GradusError, StageError, UsageError, in_words
from gradus.data.files import replace_file
from gradus.tasks.config.settings import Home

SECRETIVE = ("prefect", "mlflow", "servers", "logs")
"""Folders of a home whose files hold secrets, or may."""
FOR_OWNER = 0o077
"""The umask of processes that write there."""
_OWNER_ONLY = 0o700
_MARK, _MARKED = "made-here", "made-here.json"

FILE_NAME = "prefect-password"
USER = "gradus"
"""The name under which MLflow, or a browser for it, sends the secret; Prefect wants no name."""


def open_home(home: Home) -> None:
    """Make a home, or check the one that is there; UsageError if it may not be used, GradusError if it cannot be."""
    named = bool(os.environ.get("GRADUS_HOME"))
    try:
        if not home.root.exists() or (not named and not any(home.root.iterdir())):
            _make(home.root)
        elif not named:
            _refuse_foreign(home.root)
        elif home.root.stat().st_uid == os.getuid() and not _is_marked(home.root):
            with contextlib.suppress(OSError):
                _mark(home.root)  # so that it is used as `.gradus` too; a colleague's stays as it is
        home.prefect.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        for name in SECRETIVE:
            _close(home.root / name)
    except OSError as error:
        problem = in_words(error).message
        raise GradusError(
            f"the home folder {home.root} cannot be used: {problem}", hint="set GRADUS_HOME to a folder you can write"
        ) from None


def _make(root: Path) -> None:
    """Make a marked folder under another name and rename it: no other command finds one without a mark."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # what NotADirectoryError is called one level below
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    made = Path(tempfile.mkdtemp(prefix=".gradus-", dir=root.parent))
    try:
        _mark(made)
        os.replace(made, root)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not root.is_dir():
            raise  # otherwise another command was first


def _mark(root: Path) -> None:
    mark = root / _MARK
    with contextlib.suppress(FileNotFoundError):
        mark.unlink()
    mark.touch()
    replace_file(root / _MARKED, json.dumps({"changed_ns": mark.lstat().st_ctime_ns}))


def _is_marked(root: Path) -> bool:
    """Return whether the mark is the one that was made in this very folder."""
    try:
        noted = json.loads((root / _MARKED).read_text(encoding="utf-8"))
        return noted == {"changed_ns": (root / _MARK).lstat().st_ctime_ns}
    except (OSError, ValueError):
        return False


def _refuse_foreign(root: Path) -> None:
    """Raise UsageError if a home that GRADUS_HOME does not name may come from elsewhere."""
    status = root.stat()
    if status.st_uid != os.getuid():
        raise UsageError(f"{root} belongs to another account", hint="set GRADUS_HOME to a folder of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"other accounts can write to {root}", hint=f"chmod go-w {root}, or set GRADUS_HOME")
    if not _is_marked(root):
        raise UsageError(
            f"{root} was not made here: it came with other files, or an earlier version of gradus made it",
            hint=f"if you trust what is in it, say so once: GRADUS_HOME={root} gradus runs",
        )


def _close(folder: Path) -> None:
    """Make a folder that only its owner can look into; one that is there is closed if it is ours."""
    with contextlib.suppress(PermissionError):  # a colleague's home, to look at
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    if not os.path.lexists(folder):
        return
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077:
        folder.chmod(_OWNER_ONLY)


def secret_path(home: Path) -> Path:
    """The file that holds the secret of a home."""
    return home / FILE_NAME


def secret(home: Path) -> str:
    """Return the secret of a home, made at the first call; StageError if another account could know it."""
    path = secret_path(home)
    try:
        return _read_secret(path)
    except FileNotFoundError:
        _make_secret(path)
    return _read_secret(path)


def _read_secret(path: Path) -> str:
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


def _make_secret(path: Path) -> None:
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
