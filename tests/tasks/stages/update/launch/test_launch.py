"""Stage update on two and three ranks, as real processes: results, memory, kills, resumption."""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradus.data.errors import StageError
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import state_ref
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.pins import pinned
from gradus.tasks.stages.update.launch.supervision import KeptRanks

House = Any
RANK = "gradus.tasks.stages.update.launch.rank"
STEPS = {"epochs": 3, "minibatch_groups": 1, "lr": 1e-3, "max_grad_norm": 0.5}
"""Six steps: one of the three groups has nothing to learn from."""
HUNGRY = '''
import os
import torch
from gradus.models.objectives.losses.clipped import clip


def hungry(rows):
    """The usual loss; on rank 1 it runs out of memory for more than eight tokens."""
    if os.environ.get("RANK") == "1" and len(rows.row) > 8:
        raise torch.OutOfMemoryError("no memory")
    return clip(rows)
'''


def assert_alike(house: House, folder: Path, expected: Path) -> None:
    """Two checkpoints have the same files, and weights that differ by rounding."""
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in expected.iterdir())
    found, start = house.weights(folder), house.weights(house.store.path(house.policy))
    for name, weight in house.weights(expected).items():
        moved = float((weight - start[name]).abs().max())
        assert float((found[name] - weight).abs().max()) < 0.02 * moved, name


def ranks_here() -> dict[int, psutil.Process]:
    """The ranks that this process has started and that have not ended, by their number."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if RANK in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found[int(process.environ()["RANK"])] = process
    return found


class Kills:
    """A beat that kills a rank once its text begins with `at`; `here` are the processes of all ranks then."""

    def __init__(self, rank: int, at: str) -> None:
        self.rank, self.at, self.here = rank, at, dict[int, psutil.Process]()

    def __call__(self, frac: float, text: str = "") -> None:
        if text.startswith(self.at) and not self.here:
            self.here |= ranks_here()
            assert {each.environ()["OMP_WAIT_POLICY"] for each in self.here.values()} == {"PASSIVE"}
            self.here[self.rank].kill()


def test_ranks_make_the_checkpoint_of_one_process_though_memory_runs_out(house: House, tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(HUNGRY)
    given = {**STEPS, "minibatch_groups": 0, "kl_coef": 0.2, "loss": f"{tmp_path}/hungry.py:hungry"}
    settings = pinned(UpdateConfig.model_validate(given)).model_dump(mode="json")
    inputs = house.inputs(reference=[house.other])
    alone, expected = house.run(house.job(inputs, **settings))
    folder, found = house.run(house.job(inputs, **{**settings, "micro_tokens": 16}, launch={"processes": 2}))
    assert_alike(house, folder, alone)
    assert found["metrics"]["perf/memory_halvings"] >= 1
    for step, wanted in zip(found["steps"], expected["steps"], strict=True):
        assert step["policy/grad_norm"] == pytest.approx(wanted["policy/grad_norm"], rel=1e-4)
        assert step["policy/loss"] == pytest.approx(wanted["policy/loss"], rel=1e-4, abs=1e-6)


def test_a_killed_rank_is_named_and_other_numbers_of_ranks_go_on(house: House) -> None:
    inputs = house.inputs(reference=[house.other])
    alone, expected = house.run(house.job(inputs, **STEPS))
    job = house.job(inputs, **STEPS)
    for processes, rank, at in ((2, 1, "step 2"), (3, 0, "step 4")):
        job["config"]["launch"] = {"processes": processes}
        sentence = rf"rank {rank} of {processes} \(process \d+ on .+\) was killed by SIGKILL.*repeat the command"
        kills = Kills(rank, at)
        with pytest.raises(StageError, match=sentence):
            house.run(job, beat=kills)
        assert sorted(kills.here) == list(range(processes))
        assert not any(process.is_running() for process in kills.here.values())
    job["config"].pop("launch")
    folder, report = house.run(job)
    assert_alike(house, folder, alone)
    assert len(report["steps"]) == len(expected["steps"]) == 6


def test_a_disk_that_is_full_for_one_rank_is_a_sentence_and_room_lets_the_update_end_in_the_same_bytes(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("GRADUS_RUN_LOGS", str(tmp_path / "logs"))  # the ranks of one update stay for the next
    inputs, warm = house.inputs(reference=[house.other]), Warm()
    config = {"minibatch_groups": 0, "ema_decay": 0.5, "launch": {"processes": 2}}
    job, undisturbed = house.job(inputs, **config), house.job(inputs, **config)
    weights_bytes = (house.store.path(house.policy) / "model.safetensors").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Policy and average fit. The optimiser's file, the second of the train state and so that of rank 1, does not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (weights_bytes + 1000, before[1]))
    try:
        with pytest.raises(
            StageError, match=r"/optimizer\.safetensors cannot be written: .*File too large.*; make room"
        ):
            house.run(job, warm)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert house.store.find(Ref.parse(job["output"])) is None
    folder, _ = house.run(job, warm)
    last, warm_group = house.run(undisturbed, warm)[0], warm.of(KeptRanks).group
    assert warm_group is not None
    warm_group.end()
    assert house.same_files(folder, last)
    assert house.store.verify(state_ref(Ref.parse(job["output"]))).files
