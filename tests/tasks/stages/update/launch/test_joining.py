"""Whom `join` waits for: a run that is not there yet, one whose process lives, and not one whose process was killed."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from gradus.data.errors import GradusError, StageError
from gradus.tasks.runs.journal import Journal
from gradus.tasks.stages.update.launch import ranks
from gradus.tasks.stages.update.launch.ranks import joined

FIRST_HOST = """
import sys
from pathlib import Path
from gradus.data.runlock import run_lock
from gradus.tasks.runs.journal import Journal
folder = Path(sys.argv[1])
with run_lock(folder):
    journal = Journal(folder)
    journal.run_started({"run": folder.name})
    print("began", flush=True)
    sys.stdin.readline()
    journal.run_finished(status="finished")
"""
KILLED = "the run r is running by its journal, but no process works on it: it was killed"

Process = subprocess.Popen[str]
Start = Callable[[], Process]
Looks = threading.Semaphore


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that works on the run `r` until it is let go with a line, or killed."""
    begun: list[Process] = []

    def begin() -> Process:
        command = [sys.executable, "-P", "-c", FIRST_HOST, str(tmp_path / "r")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Released whenever `join` has read the journal; the time of grace is one that no test waits for."""
    counted = threading.Semaphore(0)
    standing = ranks._standing

    def watched(folder: Path) -> tuple[object, int]:
        counted.release()
        return standing(folder)

    monkeypatch.setattr(ranks, "_standing", watched)
    monkeypatch.setattr(ranks, "_LOOK_S", 0.02)
    monkeypatch.setattr(ranks, "_GRACE_S", 3600.0)
    return counted


def join(run: Path, wait_s: float = 3600.0) -> Future[int]:
    """Join a run in a thread."""
    future: Future[int] = Future()

    def work() -> None:
        try:
            future.set_result(joined(run, print, wait_s))
        except GradusError as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def await_looks(looks: Looks, joins: Future[int], number: int = 5) -> None:
    """Wait until `join` has looked at the run some times, and assert that it still waits."""
    for _ in range(number):
        assert looks.acquire(timeout=60)
    assert not joins.done(), joins.exception()


def test_a_run_whose_process_is_killed_is_left_with_a_sentence(
    tmp_path: Path, start: Start, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_GRACE_S", 0.5)
    first_host = start()
    joins = join(tmp_path / "r")
    await_looks(looks, joins)
    first_host.kill()
    with pytest.raises(StageError, match=KILLED) as caught:
        joins.result(timeout=60)
    assert caught.value.hint == "start it again on the first host with the same command, then join again"


def test_a_run_that_is_killed_and_started_again_is_joined_to_its_end(
    tmp_path: Path, start: Start, looks: Looks
) -> None:
    joins = join(tmp_path / "r")
    await_looks(looks, joins)  # there is no run yet
    first_host = start()
    await_looks(looks, joins)
    first_host.kill()
    await_looks(looks, joins)
    start().communicate("\n")
    assert joins.result(timeout=60) == 0


def test_a_run_that_was_killed_before_is_waited_for_as_one_that_has_not_begun(
    tmp_path: Path, start: Start, looks: Looks
) -> None:
    first_host = start()
    first_host.kill()
    first_host.wait()
    with pytest.raises(StageError, match=KILLED):
        join(tmp_path / "r", wait_s=0.0).result(timeout=60)
    joins = join(tmp_path / "r")
    await_looks(looks, joins)
    start().communicate("\n")
    assert joins.result(timeout=60) == 0


def test_where_locks_of_another_host_are_not_seen_a_journal_that_moves_is_waited_for(
    tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file system is not at hand: the lock is nobody's, as one says it whose flock ends at the host."""
    journal = Journal(tmp_path / "r")
    journal.run_started({"run": "r"})
    standing, moved = ranks._standing, list[bool]()

    def moving(folder: Path) -> tuple[object, int]:
        found = standing(folder)
        if not moved:
            moved.append(True)
            journal.stage_reused(stage="score", round=0, purpose="train", output="scores/a")
        return found

    monkeypatch.setattr(ranks, "_standing", moving)
    joins = join(tmp_path / "r", wait_s=0.0)
    await_looks(looks, joins)
    journal.run_finished(status="finished")
    assert joins.result(timeout=60) == 0
