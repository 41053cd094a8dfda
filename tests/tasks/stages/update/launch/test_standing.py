"""Ranks that stay between two updates: the bits are those of ranks that begin anew, and what becomes of lost ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradus.data.lake.store import Ref
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.update.launch.ranks import place_of
from gradus.tasks.stages.update.launch.supervision import KeptRanks
from tests.tasks.stages.update.launch.test_launch import ranks_here

House = Any
TWO = {"processes": 2}


def updated(house: House, policy: Ref, warm: Warm, **config: Any) -> Ref:
    """The checkpoint of an update of a policy on rollouts of its own."""
    inputs = house.inputs(policy)
    settings = {**house.steps, "warmup_steps": 5, "max_logp_diff": 9.0, "ema_decay": 0.5, "launch": TWO, **config}
    folder, _ = house.run(house.job(inputs, **settings), warm)
    return Ref("checkpoints", folder.name)


def test_ranks_that_stay_make_the_bits_of_ranks_that_begin_anew_and_lost_ones_are_replaced(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, warm = tmp_path / "logs", Warm()
    logs.mkdir()
    monkeypatch.setenv("GRADUS_RUN_LOGS", str(logs))
    first = updated(house, house.policy, warm)
    began = ranks_here()
    assert sorted(began) == [0, 1]
    second = updated(house, first, warm, between_updates="host", weight_decay=0.1)
    assert ranks_here() == began  # nobody began after them

    began[1].kill()
    again = updated(house, first, warm, between_updates="host", weight_decay=0.1)
    others = ranks_here()
    assert sorted(others) == [0, 1]
    assert not set(others.values()) & set(began.values())
    assert house.same_files(house.store.path(second), house.store.path(again))

    updated(house, again, warm, launch={"processes": 1})
    assert warm.of(KeptRanks).group is None  # an update that needs none ends them
    assert not any(process.is_running() for process in others.values())


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
