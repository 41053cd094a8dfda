"""Workers that outlive a run: the next run's pool takes them, unless something of the last run would stay in them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import StageError
from gradus.data.lake.store import Store
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runtime.stage_adapter import Session
from gradus.tasks.runtime.supervise import Limits, WorkerPool, keeping_workers, kept_workers
from tests.patience import runs, until

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LIMITS = Limits(wall_s=60, silence_s=60, start_s=60)
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")])}


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with keeping_workers():
        yield


def pool(logs: Path, **more: str) -> WorkerPool:
    return WorkerPool(logs, ENVIRONMENT | more, execute="jobs_for_workers:execute", kept=kept_workers.get())


def do(workers: WorkerPool, what: str) -> dict[str, Any]:
    return workers.run("test", {"stage": "t", "do": what}, LIMITS, lambda _frac, _text: None)


def test_a_worker_goes_on_in_the_next_run_as_a_new_one_and_writes_to_its_log(tmp_path: Path) -> None:
    with pool(tmp_path / "a") as workers:
        first = do(workers, "count")
    before = (tmp_path / "a" / "test.log").read_text()
    with pool(tmp_path / "b") as workers:
        assert do(workers, "count") == {"count": 1, "pid": first["pid"]}  # nothing is warm in it
        assert do(workers, "where") == {"logs": str(tmp_path / "b"), "pid": first["pid"]}
        with pytest.raises(StageError, match=f"no such thing; see {tmp_path}/b/test.log"):
            do(workers, "raise")
    assert "ValueError: no such thing" in (tmp_path / "b" / "test.log").read_text()
    assert (tmp_path / "a" / "test.log").read_text() == before


def test_the_last_block_ends_them(tmp_path: Path) -> None:
    with keeping_workers():
        with pool(tmp_path) as workers:
            pid = do(workers, "count")["pid"]
        assert runs(pid)
    until(lambda: not runs(pid), 15)


@pytest.mark.parametrize("what", ["child", "orphan"])
def test_one_with_processes_of_its_own_ends_with_its_run(tmp_path: Path, what: str) -> None:
    with pool(tmp_path) as workers:
        first = do(workers, what)
    with pool(tmp_path) as workers:
        assert do(workers, "count")["pid"] != first["pid"]
    until(lambda: not runs(first["pid"]) and not runs(first["child"]), 15)


def test_one_with_a_users_code_ends_with_its_run(tmp_path: Path) -> None:
    with pool(tmp_path) as workers:
        first = do(workers, "load")
    with pool(tmp_path) as workers:
        assert do(workers, "count")["pid"] != first["pid"]


def test_none_is_kept_after_an_error_a_halt_in_another_environment_or_if_unwanted(tmp_path: Path) -> None:
    pids = list[int]()

    def failed() -> None:
        with pool(tmp_path) as workers:
            pids.append(do(workers, "count")["pid"])
            do(workers, "raise")

    def halted() -> None:
        with pool(tmp_path) as workers:
            pids.append(do(workers, "count")["pid"])
            workers.halt()

    def unwanted() -> None:
        with pool(tmp_path) as workers:
            pids.append(do(workers, "count")["pid"])
            workers.keep_none()

    def elsewhere() -> None:
        with pool(tmp_path, OMP_NUM_THREADS="3") as workers:
            pids.append(do(workers, "count")["pid"])

    with pytest.raises(StageError, match="no such thing"):
        failed()
    for way in (halted, unwanted, elsewhere):
        way()
    with pool(tmp_path) as workers:
        pids.append(do(workers, "count")["pid"])
    assert len(set(pids)) == 5
    until(lambda: sum(map(runs, pids)) == 1, 15)


def test_one_that_was_killed_meanwhile_is_replaced(tmp_path: Path) -> None:
    with pool(tmp_path) as workers:
        first = do(workers, "count")["pid"]
    os.kill(first, 9)
    with pool(tmp_path) as workers:
        assert do(workers, "count")["pid"] != first


@pytest.mark.parametrize("had_a_turn", [False, True])
def test_after_a_turn_on_a_gpu_none_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_a_turn: bool) -> None:
    run = Journal(tmp_path / "run")
    with pool(tmp_path) as workers:
        session = Session(Store(tmp_path / "lake"), run, workers, seed=0)
        monkeypatch.setattr(session.gpu, "taken", had_a_turn)
        first = do(workers, "count")["pid"]
        session.close()
    with pool(tmp_path) as workers:
        assert (do(workers, "count")["pid"] == first) is not had_a_turn
