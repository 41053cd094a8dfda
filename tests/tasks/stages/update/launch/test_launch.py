"""Stage update on two and three ranks, as real processes below torchrun: results, memory, kills, resumption."""

import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradus.data.errors import StageError
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import state_ref
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.pins import pinned
from gradus.tasks.stages.update.launch.mail import Note
from gradus.tasks.stages.update.launch.supervision import KeptRanks
from gradus.tasks.stages.warm import Warm
from tests.tasks.stages.update.launch.notes import Notes

House = Any
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


@contextmanager
def killed(folder: Path, rank: int, at: str) -> Iterator[dict[int, Note]]:
    """Kill a rank once a beat begins with `at`; the processes of all ranks are there after the block."""
    here: dict[int, Note] = {}
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier launch has left

    def watch() -> None:
        mail, give_up = Notes(folder), time.monotonic() + 120
        while time.monotonic() < give_up:
            for note in mail.new():
                if note["kind"] == "here":
                    here[note["rank"]] = note
                if note["kind"] == "beat" and note["text"].startswith(at):
                    os.kill(here[rank]["pid"], signal.SIGKILL)
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    yield here
    thread.join()


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
    launch = house.store.path(Ref.parse(job["output"])) / ".scratch" / "launch"
    for processes, rank, at in ((2, 1, "step 2"), (3, 0, "step 4")):
        job["config"]["launch"] = {"processes": processes}
        sentence = rf"rank {rank} of {processes} \(process \d+ on .+\) was killed by SIGKILL.*repeat the command"
        with killed(launch, rank, at) as here, pytest.raises(StageError, match=sentence):
            house.run(job)
        assert len(here) == processes
        assert not any(psutil.pid_exists(note["pid"]) for note in here.values())
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
