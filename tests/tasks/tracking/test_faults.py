"""MLflow holds all of a run, and all of it once, after kills, beside another teller and with a dead tracker."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradus.data.errors import LockedError, StageError
from gradus.data.lake.store import Ref
from gradus.data.runlock import sole
from gradus.tasks.runs.journal import EVENTS
from gradus.tasks.tracking.client import STATE, State, database, parting_words, start_sidecar, status
from tests.patience import until

Run = Any
NewRun = Callable[[str], Run]


def test_told_again_from_the_start_nothing_is_doubled(new_run: NewRun) -> None:
    run = new_run("replayed")
    run.whole()
    run.drain()
    before = run.told()
    (run.folder / STATE).write_text("{ torn")
    assert run.drain() == 14
    after = run.told()
    assert after == before
    assert run.drain() == 0


class _Died(BaseException):
    """The process is gone: nothing catches this."""


@pytest.mark.parametrize("seed", [1, 2])
def test_dying_after_any_call_to_mlflow_doubles_and_loses_nothing(new_run: NewRun, seed: int) -> None:
    undisturbed = new_run(f"undisturbed-{seed}")
    undisturbed.whole()
    undisturbed.drain()
    run = new_run(f"dying-{seed}")
    run.whole()
    random, deaths = np.random.default_rng(seed), 0
    from gradus.tasks.tracking import sending as tracking

    class MortalClient(tracking.MlflowClient):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("_") or not callable(found):
                return found

            def act(*args: Any, **kwargs: Any) -> Any:
                result = found(*args, **kwargs)
                if random.random() < 0.12:
                    raise _Died
                return result

            return act

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "MlflowClient", MortalClient)
        while status(run.folder).untold:
            try:
                run.drain()
            except _Died:
                deaths += 1
    assert deaths > 3
    assert _sizes(run) == _sizes(undisturbed)


def _sizes(run: Run) -> dict[str, Any]:
    """What two runs with the same events have in common whatever their names and times are."""
    told = run.told()
    return {
        "counts": {kind: len(rows) for kind, rows in told.items()},
        "states": sorted(row[2] for row in told["runs"]),
        "models": [status for _, status in told["models"]],
        "values": sorted(row[1:4] for row in told["metrics"]),
        "feedbacks": [count for _, count in told["traces"]],
        "steps": sorted(row[2] for row in told["outputs"]),
        "measured": sorted(row[1:] for row in told["measured"]),
        "notes": sorted(note.count("\n") for _, note in told["notes"]),
        "files": sorted((stage.partition("-")[0], path) for stage, path, _ in told["files"] if stage != run.name),
        "of the run": sorted((path, digest) for stage, path, digest in told["files"] if stage == run.name),
    }


def test_a_dead_tracker_loses_nothing_and_is_named(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run("tracker-down")
    run.whole()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("GRADUS_TRACKING_PATIENCE_S", "0.1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        started = time.monotonic()
        with pytest.raises(StageError, match="gradus sync tracker-down"):
            run.drain()
    assert time.monotonic() - started < 5
    assert status(run.folder).untold == 14
    assert "refused" in status(run.folder).problem
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert run.drain() == 14
    assert status(run.folder).sentence == ""
    assert len(run.told()["runs"]) == 7


def test_the_next_start_closes_what_a_killed_process_left_running(new_run: NewRun) -> None:
    run = new_run("killed-before")
    run.start()
    run.begin("score", 1, Ref("scores", "ef" * 16))
    run.drain()
    # This process lives, so what it started is not taken for dead.
    assert [row[2] for row in run.told()["runs"]] == ["RUNNING", "RUNNING"]
    run.start()
    run.score(1)
    run.journal.run_finished(status="finished")
    run.drain()
    assert sorted(row[2] for row in run.told()["runs"]) == ["FINISHED", "FINISHED", "KILLED"]


def test_runs_are_closed_even_where_the_run_folder_was_deleted(new_run: NewRun) -> None:
    run = new_run("folder-gone")
    run.start()
    run.drain()
    shutil.rmtree(run.folder)
    again = new_run("folder-gone")
    again.start()
    again.journal.run_finished(status="finished")
    again.drain()
    assert sorted(row[2] for row in again.told()["runs"]) == ["FINISHED", "KILLED"]


def test_two_tellers_of_one_run_exclude_each_other(new_run: NewRun) -> None:
    run = new_run("two-tellers")
    run.whole()
    with sole(run.folder / EVENTS, wait=False) as mine:
        assert mine
        with pytest.raises(LockedError, match="two-tellers"):
            run.drain()
    assert run.drain() == 14


def test_a_sidecar_killed_while_it_follows_is_replaced_without_a_trace(new_run: NewRun) -> None:
    run = new_run("sidecar-killed")
    run.start()
    first = start_sidecar(run.folder)
    run.score(1)
    until(lambda: State.load(run.folder).offset > 0 and len(run.told()["runs"]) == 2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    run.update(1)
    run.journal.run_finished(status="finished")
    second = start_sidecar(run.folder)
    assert status(run.folder).untold
    assert parting_words(second, run.folder, run.home) == ""  # it sends the rest without this process
    assert second.wait(60) == 0
    assert status(run.folder).sentence == ""
    assert (run.folder / "logs" / "tracking.log").read_text() == ""
    told = run.told()
    assert [row[2] for row in told["runs"]] == ["FINISHED"] * 3
    # Two steps of the update, its end and the score's, two curves of the run and its number of rounds.
    assert len(told["metrics"]) == 2 + 2 + 3
    assert len(told["traces"]) == 2
    assert len(told["outputs"]) == 2
    shown = ["_manifest.json", "config.json", "samples.json"]
    files = [(stage, path) for stage, path, _ in told["files"] if stage != run.name]
    assert files == [("score-1", name) for name in shown] + [("update-1", name) for name in shown[:2]]


_FLOW = """
import os, signal, sys
from pathlib import Path
from gradus.tasks.runs.journal import Journal
from gradus.tasks.tracking.client import start_sidecar
folder = Path(sys.argv[1])
journal = Journal(folder)
journal.run_started({"run": folder.name, "verb": "train", "params": {}})
journal.stage_started(stage="score", round=1, purpose="train", output="scores/" + "ad" * 16, config={}, inputs={})
start_sidecar(folder)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_sidecar_of_a_killed_flow_closes_its_runs_and_ends(new_run: NewRun) -> None:
    run = new_run("flow-killed")
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", _FLOW, str(run.folder)], cwd=root, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    until(lambda: database(run.home).exists() and [row[2] for row in run.told()["runs"]] == ["KILLED", "KILLED"])
    told = run.told()
    assert [row[2] for row in told["runs"]] == ["KILLED", "KILLED"]
    (note,) = [note for _, note in told["notes"]]
    assert note.splitlines()[1].startswith(
        "- Killed after 0 s (stages: 0 ran, 0 reused, 0 failed): the process was killed"
    )
