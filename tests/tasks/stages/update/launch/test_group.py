"""Ranks that do not agree, GPUs that are not there, and what is made of the messages of ranks that failed."""

import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

from gradus.data.errors import GateError, GradusError, StageError, UsageError
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.preflight import abilities
from gradus.tasks.preflight.abilities import check_launch
from gradus.tasks.stages.update.launch.ranks import Note, RankJob
from gradus.tasks.stages.update.launch.supervision import error_of
from gradus.tasks.stages.update.launch.work import grouped, refuse_disagreement

House = Any


def run_rank(rank: int, jobs: list[dict[str, Any]], folder: str) -> None:
    """Join the other rank with a job of one's own; write the sentence of what is raised."""
    import os

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    job = RankJob(**jobs[rank])
    try:
        with grouped(job.update_config(), f"file://{folder}/group") as ranks:
            refuse_disagreement(ranks, job)
            Path(folder, f"agreed-{rank}").touch()
    except StageError as error:
        Path(folder, f"refused-{rank}").write_text(str(error))


def test_a_rank_with_other_settings_is_refused_before_any_step(house: House, tmp_path: Path) -> None:
    config = UpdateConfig.model_validate({"launch": {"processes": 2}}).model_dump(mode="json")
    policy = str(house.policy)
    job = RankJob("a", str(house.store.root), "checkpoints/" + "1" * 32, {"policy": [policy]}, config, 5, 64)
    jobs = [asdict(job), asdict(replace(job, seed=6))]
    multiprocessing.spawn(run_rank, (jobs, str(tmp_path)), 2)
    assert not list(tmp_path.glob("agreed-*"))
    for rank in range(2):
        sentence = (tmp_path / f"refused-{rank}").read_text()
        assert sentence.startswith("rank 1 on ")
        assert "has other settings than rank 0 on " in sentence
        assert "no step was taken" in sentence


def name(rank: int) -> str:
    return f"rank {rank} of 3 (process {40 + rank} on {'aab'[rank]})"


LOST: Note = {
    "kind": "error", "rank": 0, "type": "RuntimeError", "known": False, "message": "Connection closed by peer",
    "hint": "",
}  # fmt: skip
GATE: Note = {**LOST, "rank": 1, "type": "GateError", "known": True, "message": "too far", "hint": "roll out again"}
KILLED: Note = {"kind": "ended", "rank": 1, "code": -signal.SIGKILL}
ENDED: Note = {"kind": "ended", "rank": 0, "code": 3}


@pytest.mark.parametrize(
    ("notes", "elsewhere", "kind", "sentence"),
    [
        ([LOST, KILLED, ENDED], [2], StageError, r"rank 1 of 3 \(process 41 on a\) was killed by SIGKILL"),
        ([LOST, GATE], [2], GateError, "too far; roll out again"),
        ([LOST, ENDED], [], StageError, r"rank 0 of 3 \(process 40 on a\) failed: Connection closed by peer; repeat"),
        ([LOST, ENDED], [2], StageError, r"nothing more was heard of rank 2 of 3 \(process 42 on b\)"),
        ([LOST, {**LOST, "rank": 2}], [2], StageError, r"rank 0 of 3 .* failed: Connection closed"),
        ([ENDED], [], StageError, r"rank 0 of 3 .* ended with exit code 3"),
    ],
)
def test_the_cause_is_named_and_not_what_followed_from_it(
    notes: list[Note], elsewhere: list[int], kind: type[GradusError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        raise error_of(notes, name, elsewhere)


def test_fewer_gpus_than_processes_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "num_gpus", lambda: 2)
    config = UpdateConfig.model_validate({"launch": {"processes": 8}})
    with pytest.raises(UsageError, match="processes = 8, and this machine has 2 GPUs; "):
        check_launch(config)
    check_launch(config.model_copy(update={"device": "cpu"}))


def test_ranks_train_an_adapter_with_any_optimizer_but_not_beside_a_base_in_4_bits(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def whole(parameters, update): ...\n")
    whole = {"launch": {"processes": 2}, "device": "cpu", "optimizer": "adamw_8bit"}
    check_launch(UpdateConfig.model_validate({**whole, "lora": {}}))
    for optimizer in ("adamw_8bit", f"{tmp_path}/mine.py:whole"):
        with pytest.raises(UsageError, match=f"{Path(optimizer).name} needs whole parameters, and a rank has a part"):
            check_launch(UpdateConfig.model_validate({**whole, "optimizer": optimizer}))
    with pytest.raises(UsageError, match=r"cannot divide a base in 4 bits \(update\.lora\.quantize = nf4\)") as refused:
        check_launch(UpdateConfig.model_validate({**whole, "lora": {"quantize": "nf4"}}))
    assert refused.value.hint == "set update.lora.quantize=none, or leave update.launch out"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has GPUs")
def test_a_machine_without_gpus_counts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert abilities.num_gpus() == 0


def test_launch_is_no_part_of_an_identity() -> None:
    config = UpdateConfig.model_validate({"launch": {"processes": 8}})
    assert config.identified() == UpdateConfig().identified()
    assert "launch" not in UpdateConfig().model_dump()
