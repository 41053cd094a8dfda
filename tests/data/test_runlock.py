"""Locks that name their holder and locks that do not, on a local file system and by the rules of NFS."""

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import IO

import pytest

from gradus.data.errors import LockedError
from gradus.data.runlock import LOCK, holder, run_lock, sole

FLOCK = fcntl.flock


def flock_of_nfs(file: IO[str] | int, kind: int) -> None:
    """Lock as NFS does (flock(2), "NFS details"): exclusively what may be written alone, shared what may be read."""
    opened = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
    if opened == (os.O_RDONLY if kind & fcntl.LOCK_EX else os.O_WRONLY):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    FLOCK(file, kind)


@pytest.fixture(params=["local", "nfs"], autouse=True)
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "nfs":
        monkeypatch.setattr(fcntl, "flock", flock_of_nfs)


def test_a_folder_has_one_holder_who_is_named_until_it_lets_go(tmp_path: Path) -> None:
    with run_lock(tmp_path, command="train theirs"):
        found = holder(tmp_path)
        assert found is not None
        assert (found["pid"], found["command"]) == (os.getpid(), "train theirs")
        with pytest.raises(LockedError, match=f"process {os.getpid()} .*train theirs"), run_lock(tmp_path):
            pass
    assert holder(tmp_path) is None
    with run_lock(tmp_path):
        assert holder(tmp_path) is not None


def test_who_looks_is_not_taken_for_a_holder(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        pass
    with (tmp_path / LOCK).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert holder(tmp_path) is None


def test_a_lock_without_a_name_is_one_processs_and_others_wait_or_hear_so(tmp_path: Path) -> None:
    path, had = tmp_path / "new" / LOCK, threading.Event()

    def wait() -> None:
        with sole(path) as mine:
            assert mine
            had.set()

    waits = threading.Thread(target=wait)
    with sole(path) as mine:
        assert mine
        with sole(path, wait=False) as other:
            assert not other
        waits.start()
        assert not had.wait(0.2)
    waits.join(timeout=10)
    assert had.is_set()
    with sole(path, wait=False) as mine:
        assert mine


def test_who_does_not_wait_makes_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "gone" / LOCK, tmp_path / LOCK):
        with pytest.raises(FileNotFoundError), sole(path, wait=False):
            pass
    assert list(tmp_path.iterdir()) == []
