"""Stage update with a critic, and with a teacher, on two and three ranks as real processes: what one process does."""

from pathlib import Path
from typing import Any

import pytest

from gradus.data.lake.store import Ref
from tests.tasks.stages.update.conftest import state_folder
from tests.tasks.stages.update.launch.test_adapter import tensors_of

House = Any
CRITIC: dict[str, Any] = {
    "advantage": "gae",
    "critic": {"lr": 1e-2, "max_grad_norm": 0.1},
    "epochs": 2,
    "minibatch_groups": 1,
    "lr": 1e-3,
}
TEACHER: dict[str, Any] = {"loss": "distil", "teacher_top_k": 5}


def assert_alike(folder: Path, expected: Path, reported: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Two updates wrote the same files, tensors and figures of steps, but for rounding."""
    found, tensors = tensors_of(folder), tensors_of(expected)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        if tensor.is_floating_point():
            assert float((found[name] - tensor).abs().max()) <= 1e-3 * float(tensor.abs().max()), name
    for one, other in zip(reported["steps"], wanted["steps"], strict=True):
        assert without_clock(one) == pytest.approx(without_clock(other), rel=1e-3, abs=1e-5)


def without_clock(step: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in step.items() if not name.startswith("perf/")}


def explains(report: dict[str, Any]) -> bool:
    """Whether values of the critic from before the update have anything to do with what followed."""
    return any(step["critic/explained_variance"] != 0 for step in report["steps"])


def test_a_critic_and_a_teacher_on_ranks_do_what_they_do_for_one_process(house: House) -> None:
    inputs = house.inputs()
    first, report = house.run(house.job(inputs, **CRITIC))
    divided, reported = house.run(house.job(inputs, **CRITIC, launch={"processes": 2}))
    assert {"critic.safetensors", "critic_optimizer.safetensors"} <= {p.name for p in state_folder(divided).iterdir()}
    assert_alike(divided, first, reported, report)
    assert not explains(report)  # a new critic knows nothing
    assert report["steps"][-1]["critic/grad_norm"] > CRITIC["critic"]["max_grad_norm"]

    # The critic of two ranks goes on in three and in one; beside it the policy learns from a teacher.
    following = house.inputs(Ref("checkpoints", divided.name), teacher=[house.other])
    alone, report = house.run(house.job(following, **CRITIC, **TEACHER))
    ranks, reported = house.run(house.job(following, **CRITIC, **TEACHER, launch={"processes": 3}))
    assert_alike(ranks, alone, reported, report)
    assert explains(report)
