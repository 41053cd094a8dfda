"""One attempt of a stage: alone on its artifact, and never a second time what another process finished meanwhile."""

import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import GateError, LockedError
from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.runlock import holder, run_lock
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.host.waiting import hold
from gradus.tasks.runtime.calls import Job, execute, num_gpus
from gradus.tasks.stages.context import read_report

IDENTITY = {"stage": "curate", "version": 1}
REF = Ref("plan", identity_digest(IDENTITY))


def job(root: Path) -> Job:
    problems = Store(root).put("problems", pa.table({"problem_id": ["a", "b"], "question": ["1 + 1 =", "2 + 2 ="]}))
    config = CurateConfig().model_dump(mode="json")
    return Job("curate", str(root), str(REF), {"problems": [str(problems)]}, config, seed=1, identity=IDENTITY)


def never(frac: float, _text: str = "") -> None:
    raise AssertionError(f"something is computed: {frac}")


def test_with_no_wait_an_artifact_that_another_process_makes_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADUS_NO_WAIT", "1")
    todo = vars(job(tmp_path))
    store = Store(tmp_path)
    with (
        run_lock(store.path(REF), command="run theirs"),
        pytest.raises(LockedError, match=rf"run theirs \(process {os.getpid()} on .* computes {REF}"),
    ):
        execute(todo, Warm(), never)
    assert store.find(REF) is None


@pytest.mark.slow
def test_an_artifact_that_another_process_makes_is_waited_for(tmp_path: Path) -> None:
    todo = vars(job(tmp_path))
    said: list[str] = []
    lock = run_lock(Store(tmp_path).path(REF), command="run theirs")
    with lock:
        timer = threading.Timer(0.6, lock.__exit__, (None, None, None))
        timer.start()
        report = execute(todo, Warm(), lambda frac, text="": said.append(text))
        timer.join()
    assert "waiting for run theirs" in said[0]
    assert report["summary"]["kept"] == 2


def test_a_forced_stage_is_computed_again_and_a_damaged_manifest_is_replaced(tmp_path: Path) -> None:
    todo = vars(job(tmp_path))
    store = Store(tmp_path)
    execute(todo, Warm(), lambda frac, text="": None)
    before = (store.path(REF) / "_manifest.json").read_bytes()
    again = execute({**todo, "forced": True}, Warm(), lambda frac, text="": None)
    assert again["metrics"]["perf/compute_s"] > 0
    (store.path(REF) / "_manifest.json").write_bytes(before.replace(b"curate", b"curlew"))
    assert store.find(REF) is None
    execute(todo, Warm(), lambda frac, text="": None)
    assert (store.path(REF) / "_manifest.json").read_bytes() == before


def test_what_was_finished_meanwhile_is_taken_as_it_is(tmp_path: Path) -> None:
    todo = vars(job(tmp_path))
    first = execute(todo, Warm(), lambda frac, text="": None)
    assert first["metrics"]["perf/compute_s"] > 0
    kept = read_report(Store(tmp_path), REF)
    assert execute(todo, Warm(), never) == kept
    assert kept["summary"] == first["summary"]
    assert not {"perf/compute_s", "perf/cpu_s"} & kept["metrics"].keys()


def test_an_attempt_says_what_cpu_and_gpus_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoGpus:
        """torch on a machine that this test does not have."""

        cuda = SimpleNamespace(device_count=lambda: 2)

    report = execute(vars(job(tmp_path)), Warm(), lambda frac, text="": None)
    # The process and its threads: more than the wall time only if several computed.
    assert 0 <= report["metrics"]["perf/cpu_s"] <= 2 * (os.cpu_count() or 1) * report["metrics"]["perf/compute_s"] + 1
    assert "perf/gpu_s" not in report["metrics"]
    monkeypatch.setitem(sys.modules, "torch", TwoGpus)
    assert [num_gpus(config) for config in (RolloutConfig(), RolloutConfig(device="cpu"), CurateConfig())] == [2, 0, 0]


def failing(root: Path) -> Job:
    """A job that fails before its first shard: no problem passes the filter."""
    good = job(root)
    filters = [{"name": "length", "low": 1000}]
    return replace(good, config=CurateConfig.model_validate({"filters": filters}).model_dump(mode="json"))


def test_a_failure_without_a_shard_leaves_no_folder_and_one_with_a_shard_keeps_it(tmp_path: Path) -> None:
    store, todo = Store(tmp_path), vars(failing(tmp_path))
    with pytest.raises(GateError):
        execute(todo, Warm(), lambda frac, text="": None)
    assert not store.path(REF).exists()
    store.writer(REF).write_table(pa.table({"problem_id": ["a"], "group_id": ["g"], "n": [1]}))
    with pytest.raises(GateError):
        execute(todo, Warm(), lambda frac, text="": None)
    assert store.writer(REF).done == {"part-00000"}


def test_a_lock_that_is_removed_while_others_want_it_is_never_held_by_two(tmp_path: Path) -> None:
    folder, inside, most = tmp_path / "held", 0, 0

    def take(_: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with hold(folder, "", lambda text: None):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1
                shutil.rmtree(folder, ignore_errors=True)  # another can have made its lock in it meanwhile

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(take, range(4)))
    assert most == 1


def test_a_folder_that_goes_while_its_lock_makes_it_is_made_again_and_a_file_in_its_place_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made, calls = tmp_path / "held", Path.mkdir, [0]

    def as_another_removes_it(path: Path, *args: Any, **kwargs: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise FileExistsError(path)
        made(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", as_another_removes_it)
    with run_lock(folder):
        assert holder(folder) is not None
    assert calls[0] == 2
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), run_lock(tmp_path / "file"):
        pass
