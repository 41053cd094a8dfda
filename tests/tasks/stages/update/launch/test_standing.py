"""Ranks that stay between two updates: the bits are those of ranks that begin anew, and what becomes of lost ones."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradus.data.lake.store import Ref
from gradus.tasks.stages.update.launch.supervision import KeptRanks
from gradus.tasks.stages.warm import Warm
from tests.tasks.stages.update.launch.notes import Notes

House = Any
TWO = {"processes": 2}


def updated(house: House, policy: Ref, warm: Warm, **config: Any) -> Ref:
    """The checkpoint of an update of a policy on rollouts of its own."""
    rows = house.rows(policy)
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [policy]}
    settings = {**house.steps, "warmup_steps": 5, "max_logp_diff": 9.0, "ema_decay": 0.5, "launch": TWO, **config}
    folder, _ = house.run(house.job(inputs, **settings), warm)
    return Ref("checkpoints", folder.name)


def ranks_of(logs: Path) -> list[int]:
    """The process ids of the last ranks that began."""
    return [note["pid"] for note in Notes(logs / "launch").new() if note["kind"] == "here"]


def test_ranks_that_stay_make_the_bits_of_ranks_that_begin_anew_and_lost_ones_are_replaced(
    new_house: Callable[[str], House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setenv("GRADUS_RUN_LOGS", str(logs))
    anew, staying, warm = new_house("anew"), new_house("staying"), Warm()
    expected = first = updated(anew, anew.policy, Warm(), between_updates="disk")
    expected = updated(anew, expected, Warm(), between_updates="disk", weight_decay=0.1)
    assert not (logs / "launch").exists()
    found = updated(staying, staying.policy, warm)
    began = ranks_of(logs)
    assert len(began) == 2
    assert staying.same_files(staying.store.path(found), anew.store.path(first))
    found = updated(staying, found, warm, between_updates="host", weight_decay=0.1)
    assert ranks_of(logs) == began  # nobody began after them
    assert staying.same_files(staying.store.path(found), anew.store.path(expected))

    os.kill(began[1], signal.SIGKILL)
    group = warm.of(KeptRanks).group
    assert group is not None
    group.agent.wait(timeout=60)  # torchrun ends the other
    found = updated(staying, found, warm)
    others = ranks_of(logs)
    assert len(others) == 2
    assert not set(others) & set(began)
    expected = updated(anew, expected, Warm(), between_updates="disk")
    assert staying.same_files(staying.store.path(found), anew.store.path(expected))

    updated(staying, found, warm, launch={"processes": 1})
    assert warm.of(KeptRanks).group is None  # an update that needs none ends them
    give_up = time.monotonic() + 30
    while any(map(psutil.pid_exists, others)):
        assert time.monotonic() < give_up
        time.sleep(0.1)
