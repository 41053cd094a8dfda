"""Two processes never work on one run or one artifact: a lock that names its holder, free when the holder is dead.

    with held(store.path(ref)):      # after any other process; what one that died was writing is removed

The truth is the kernel's lock on the file (gone with its process, however that ends); the text inside names the holder.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypedDict

from gradus.data.errors import LockedError
from gradus.data.files import sweep

LOCK = ".lock"
"""The file in a folder whose lock is that of the folder."""
_PATIENCE_S = 0.25
"""Time in which a lock is tried again: another process may be looking at it, or letting it go, just now."""


class Holder(TypedDict, total=False):
    """The process that holds a folder, as it says itself; empty while the lock changes hands."""

    pid: int
    host: str
    since: str
    command: str


@contextlib.contextmanager
def run_lock(
    folder: Path, hint: str = "wait for it, stop it, or give this run another name with --run", command: str = ""
) -> Generator[None]:
    """Hold a folder; LockedError names the living process that has it."""
    path, give_up = folder / LOCK, time.monotonic() + _PATIENCE_S
    while (file := _opened(path)) is None:
        if time.monotonic() >= give_up:
            there = _read(path)
            raise LockedError(
                f"{folder} is in use by process {there.get('pid', '?')} on {there.get('host', '?')} since "
                f"{there.get('since', '?')} ({there.get('command', '?')})",
                hint=hint,
            )
        time.sleep(_PATIENCE_S / 10)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    command = command or " ".join(sys.argv)[:200]
    mine: Holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": command}
    with file:
        file.truncate(0)
        json.dump(mine, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


@contextlib.contextmanager
def held(folder: Path, wait: Callable[[], object] = lambda: None, command: str = "") -> Generator[None]:
    """Hold the folder of an artifact, after any other process that does; `wait` is called as long as one does.

    Temporary files that a dead process has left there are removed, which is safe under the lock alone.
    """
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(run_lock(folder, command=command))
                break
            except LockedError:
                wait()
        sweep(folder)
        yield


@contextlib.contextmanager
def sole(path: Path, *, wait: bool = True) -> Generator[bool]:
    """Hold the kernel's lock of a file, which names no holder; yield False if another process has it.

    With `wait` it is held after any other process; file and folder are made, for their owner, if they are not there.
    """
    if wait:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(path, os.O_RDWR | (os.O_CREAT if wait else 0), 0o600)  # NFS locks what may be written alone
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        mine = True
    except BlockingIOError:
        mine = False
    try:
        yield mine
    finally:
        os.close(opened)


def holder(folder: Path) -> Holder | None:
    """Return the holder of a folder; None if no living process holds it."""
    path = folder / LOCK
    # A shared lock, since the folder may be read-only: NFS has no other one of a file that is open for reading.
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
        return None if _locked(file, fcntl.LOCK_SH) else _read(path)
    return None


def left_by_the_dead(folder: Path) -> bool:
    """Return whether a process held the folder and ended without releasing it."""
    path = folder / LOCK
    return path.exists() and path.stat().st_size > 0 and holder(folder) is None


def _opened(path: Path) -> IO[str] | None:
    """Return the locked file; None if another process has it, or has just removed it with its folder."""
    with contextlib.suppress(FileNotFoundError):
        if not _made(path.parent):
            return None
        file = path.open("a+", encoding="utf-8")
        if _locked(file) and _is_at(file, path):
            return file
        file.close()
    return None


def _made(folder: Path) -> bool:
    """Make a folder if it is not there; return False if another process removed it meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # mkdir looks a second time before it lets a folder pass that was there; by then it may be gone.
        if os.path.lexists(folder):
            raise
        return False
    return True


def _locked(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Take the kernel's lock; return False if another process has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is the one at a path, and no longer lies below a removed folder."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _read(path: Path) -> Holder:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError):
        return {}
