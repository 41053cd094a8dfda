"""Workers: warm between jobs, killed for certain, replaced when dead, gone when the parent is."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gradus.data import runlock
from gradus.data.errors import GateError, LockedError, StageError
from gradus.data.runlock import holder, left_by_the_dead, run_lock
from gradus.tasks.runtime import supervise
from gradus.tasks.runtime.supervise import HaltedError, Limits, WorkerPool
from tests.patience import runs, until

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LIMITS = Limits(wall_s=60, silence_s=60, start_s=60)
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")])}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path / "logs", ENVIRONMENT, execute="jobs_for_workers:execute") as made:
        yield made


def do(pool: WorkerPool, what: str, limits: Limits = LIMITS) -> dict[str, Any]:
    return pool.run("test", {"stage": "t", "do": what}, limits, lambda _frac, _text: None)


def gone(*pids: int) -> None:
    """Assert that processes end."""
    until(lambda: not any(map(runs, pids)), 15)


def test_a_worker_stays_warm_and_beats(pool: WorkerPool) -> None:
    beats: list[tuple[float, str]] = []
    first = pool.run("test", {"stage": "t", "do": "count"}, LIMITS, lambda frac, text: beats.append((frac, text)))
    assert beats == [(0.5, "half-way")]
    assert do(pool, "count") == {"count": 2, "pid": first["pid"]}


def test_errors_come_back_as_what_they_were_and_the_worker_lives_on(pool: WorkerPool) -> None:
    pid = do(pool, "count")["pid"]
    with pytest.raises(GateError, match="the limit was breached; raise it"):
        do(pool, "gate")
    with pytest.raises(StageError, match="stage t failed: no such thing; see "):
        do(pool, "raise")
    assert do(pool, "count") == {"count": 2, "pid": pid}


def test_a_killed_worker_is_named_and_replaced(pool: WorkerPool) -> None:
    pid = do(pool, "count")["pid"]
    with pytest.raises(StageError, match="killed by SIGKILL"):
        do(pool, "die")
    after = do(pool, "count")
    assert after["count"] == 1
    assert after["pid"] != pid


def test_a_worker_that_died_idle_is_replaced(pool: WorkerPool) -> None:
    pid = do(pool, "count")["pid"]
    os.kill(pid, signal.SIGKILL)
    gone(pid)
    assert do(pool, "count")["count"] == 1


def test_a_worker_that_is_dying_when_the_job_comes_is_replaced(pool: WorkerPool) -> None:
    for _ in range(3):
        os.kill(do(pool, "count")["pid"], signal.SIGKILL)
        assert do(pool, "count")["count"] == 1


def test_a_worker_that_is_being_made_as_ctrl_c_comes_is_ended_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[psutil.Process] = []

    class Slow(supervise.Worker):
        def __init__(self, *arguments: Any) -> None:
            time.sleep(0.3)  # the thread that waits is interrupted before there is a process
            super().__init__(*arguments)
            made.append(psutil.Process(self.pid))

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(supervise, "Worker", Slow)
    pool = WorkerPool(tmp_path / "logs", ENVIRONMENT, execute="jobs_for_workers:execute")
    submit = pool._maker.submit

    def submitted(job: Any, *more: Any) -> Any:
        future = submit(job, *more)
        return future if job is int else SimpleNamespace(result=interrupted)

    monkeypatch.setattr(pool._maker, "submit", submitted)
    with pytest.raises(KeyboardInterrupt):
        do(pool, "count")
    pool.close()
    assert made
    assert not made[0].is_running()


def test_a_job_that_holds_the_interpreter_lock_is_ended(pool: WorkerPool) -> None:
    pid = do(pool, "count")["pid"]
    with pytest.raises(StageError, match="no sign of life for 4 s"):
        do(pool, "hang", Limits(wall_s=60, silence_s=4, start_s=60))
    gone(pid)


def test_a_job_over_its_wall_limit_is_ended(pool: WorkerPool) -> None:
    pid = do(pool, "count")["pid"]
    with pytest.raises(StageError, match="longer than its limit of 1 s"):
        do(pool, "sleep", Limits(wall_s=1, silence_s=60, start_s=60))
    gone(pid)


def test_a_grandchild_in_its_own_session_that_ignores_sigterm_is_ended_too(pool: WorkerPool) -> None:
    found = do(pool, "orphan")
    assert psutil.pid_exists(found["child"])
    pool.close()
    gone(found["pid"], found["child"])


@pytest.mark.parametrize("group", [None, 0])
def test_a_worker_that_is_killed_takes_its_children_along_though_nobody_looks(
    pool: WorkerPool, group: int | None
) -> None:
    # None is the worker's own process group, 0 a new one, as Ray gives to its workers.
    job = {"stage": "t", "do": "child", "group": group}
    found = pool.run("test", job, LIMITS, lambda _frac, _text: None)
    time.sleep(0.2)
    assert runs(found["child"])
    os.kill(found["pid"], signal.SIGKILL)
    gone(found["child"])


def test_two_kinds_of_workers_work_at_once_and_halting_ends_both(pool: WorkerPool) -> None:
    begun = {kind: threading.Event() for kind in ("one", "other")}
    others = {process.pid for process in psutil.Process().children()}  # workers of other tests' pools

    def sleep(kind: str) -> dict[str, Any]:
        return pool.run(kind, {"stage": kind, "do": "sleep"}, LIMITS, lambda _frac, _text: begun[kind].set())

    with ThreadPoolExecutor(max_workers=2) as threads:
        asleep = [threads.submit(sleep, kind) for kind in begun]
        assert all(event.wait(LIMITS.start_s) for event in begun.values())
        made = [process for process in psutil.Process().children() if process.pid not in others]
        workers = [process.pid for process in made if "gradus.tasks.runtime.worker" in process.cmdline()]
        assert len(workers) == 2
        pool.halt()
        for future in asleep:
            with pytest.raises(HaltedError, match="what ran beside it did not end well"):
                future.result(timeout=10)
    gone(*workers)
    with pytest.raises(HaltedError):
        do(pool, "count")


def test_a_worker_begun_early_takes_the_job_and_nobody_waits_for_it_while_it_works(pool: WorkerPool) -> None:
    pool.prestart("test")
    early = psutil.Process().children()
    assert do(pool, "count")["pid"] in [process.pid for process in early]
    begun = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as threads:
        asleep = threads.submit(
            pool.run, "test", {"stage": "t", "do": "sleep"}, LIMITS, lambda _frac, _text: begun.set()
        )
        assert begun.wait(LIMITS.start_s)
        pool.prestart("test")
        assert not asleep.done()
        pool.halt()
        assert isinstance(asleep.exception(timeout=10), HaltedError)


PARENT = """
import sys, time
from pathlib import Path
from gradus.data.runlock import run_lock
from gradus.tasks.runtime.supervise import Limits, WorkerPool
folder = Path(sys.argv[1])
with run_lock(folder), WorkerPool(folder, {"PYTHONPATH": sys.argv[2]}, execute="jobs_for_workers:execute") as pool:
    pid = pool.run("test", {"stage": "t", "do": sys.argv[3]}, Limits(), lambda frac, text: None)["pid"]
    print(pid, flush=True)
    time.sleep(600)
"""


def test_a_killed_parent_takes_its_worker_along_and_leaves_a_lock_to_take_over(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HERE), str(ROOT / "src")])
    command = [sys.executable, "-c", PARENT, str(tmp_path), path, "count"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        with pytest.raises(LockedError, match=f"in use by process {parent.pid}"), run_lock(tmp_path):
            pass
        held = holder(tmp_path)
        assert held is not None
        assert held["pid"] == parent.pid
        parent.kill()
    gone(worker)
    assert left_by_the_dead(tmp_path)
    with run_lock(tmp_path):
        held = holder(tmp_path)
        assert held is not None
        assert held["pid"] == os.getpid()
    assert not left_by_the_dead(tmp_path)


def test_a_lock_of_the_dead_that_somebody_looks_at_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").write_text('{"pid": 1}')
    locked, answers = runlock._locked, [False, False]  # a host that has joined the run asks who holds it
    monkeypatch.setattr(runlock, "_locked", lambda *asked: answers.pop() if answers else locked(*asked))
    with run_lock(tmp_path):
        held = holder(tmp_path)
        assert held is not None
        assert held["pid"] == os.getpid()


def judge_folders(folder: Path) -> list[Path]:
    return list(folder.glob("gradus-judge-*"))


def test_the_folders_of_judges_go_with_their_worker(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    do(pool, "judge")
    assert len(judge_folders(tmp_path)) == 1
    pool.close()
    assert judge_folders(tmp_path) == []


def test_the_folders_of_judges_go_with_a_killed_command(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HERE), str(ROOT / "src")])
    command = [sys.executable, "-c", PARENT, str(tmp_path), path, "judge"]
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert len(judge_folders(tmp_path)) == 1
        parent.kill()
    until(lambda: not judge_folders(tmp_path), 15)
