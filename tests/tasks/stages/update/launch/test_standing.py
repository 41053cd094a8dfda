"""Ranks that stay between two updates: the bits are those of ranks that begin anew, and what becomes of lost ones."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from gradus.data.lake.store import Ref
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.update.launch.standing import place_of
from gradus.tasks.stages.update.launch.supervision import KeptRanks
from gradus.tasks.stages.warm import Warm
from tests.patience import until
from tests.tasks.stages.update.launch.notes import Notes

House = Any
TWO = {"processes": 2}


def updated(house: House, policy: Ref, warm: Warm, **config: Any) -> Ref:
    """The checkpoint of an update of a policy on rollouts of its own."""
    inputs = house.inputs(policy)
    settings = {**house.steps, "warmup_steps": 5, "max_logp_diff": 9.0, "ema_decay": 0.5, "launch": TWO, **config}
    folder, _ = house.run(house.job(inputs, **settings), warm)
    return Ref("checkpoints", folder.name)


def ranks_of(logs: Path) -> list[int]:
    """The process ids of the last ranks that began."""
    return [note["pid"] for note in Notes(logs / "launch").new() if note["kind"] == "here"]


def test_ranks_that_stay_make_the_bits_of_ranks_that_begin_anew_and_lost_ones_are_replaced(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, warm = tmp_path / "logs", Warm()
    logs.mkdir()
    monkeypatch.setenv("GRADUS_RUN_LOGS", str(logs))
    first = updated(house, house.policy, warm)
    began = ranks_of(logs)
    assert len(began) == 2
    second = updated(house, first, warm, between_updates="host", weight_decay=0.1)
    assert ranks_of(logs) == began  # nobody began after them

    os.kill(began[1], signal.SIGKILL)
    group = warm.of(KeptRanks).group
    assert group is not None
    group.agent.wait(timeout=60)  # torchrun ends the other
    again = updated(house, first, warm, between_updates="host", weight_decay=0.1)
    others = ranks_of(logs)
    assert len(others) == 2
    assert not set(others) & set(began)
    assert house.same_files(house.store.path(second), house.store.path(again))

    updated(house, again, warm, launch={"processes": 1})
    assert warm.of(KeptRanks).group is None  # an update that needs none ends them
    until(lambda: not any(map(psutil.pid_exists, others)), 30)


def test_ranks_stay_in_the_logs_of_a_run_unless_the_settings_keep_updates_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = SimpleNamespace(out=SimpleNamespace(scratch=tmp_path / "out"))
    for logs, between, expected in (
        ("", "host", (tmp_path / "out" / "launch", False)),
        (str(tmp_path / "logs"), "host", (tmp_path / "logs" / "launch", True)),
        (str(tmp_path / "logs"), "disk", (tmp_path / "out" / "launch", False)),
    ):
        monkeypatch.setenv("GRADUS_RUN_LOGS", logs)
        assert place_of(cast("Any", ctx), UpdateConfig(between_updates=between)) == expected
