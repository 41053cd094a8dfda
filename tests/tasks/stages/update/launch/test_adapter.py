"""Stage update with an adapter on two and three ranks, as real processes: what one process writes, and goes on from."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from gradus.data.errors import StageError
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import state_ref
from gradus.models.policy_files import ADAPTER_CONFIG
from gradus.models.training.lora import trained_parameters
from gradus.models.training.parallel import Ranks
from gradus.tasks.artifacts.policies import base_ref
from gradus.tasks.artifacts.weights import adapted_policy
from gradus.tasks.config.learning import UpdateConfig
from tests.tasks.stages.update.conftest import state_folder
from tests.tasks.stages.update.launch.test_launch import Kills

House = Any
STEPS: dict[str, Any] = {
    "lora": {"rank": 4, "alpha": 8},
    "epochs": 3,
    "minibatch_groups": 1,
    "lr": 1e-2,
    "max_grad_norm": 0.5,
    "ema_decay": 0.5,
}
"""Six steps: one of the three groups has nothing to learn from."""


def tensors_of(folder: Path) -> dict[str, Any]:
    """The tensors of a checkpoint and of its train state, by file and name."""
    roots = (folder, state_folder(folder))
    files = {str(path.relative_to(root)): path for root in roots for path in sorted(root.rglob("*.safetensors"))}
    return {f"{name}: {key}": tensor for name, path in files.items() for key, tensor in load_file(path).items()}


def assert_alike(folder: Path, expected: Path) -> None:
    """Two checkpoints of adapters have the same files, and matrices that differ by rounding."""
    for one, other in ((folder, expected), (state_folder(folder), state_folder(expected))):
        assert sorted(p.name for p in one.rglob("*")) == sorted(p.name for p in other.rglob("*"))
    for name in (ADAPTER_CONFIG, f"ema/{ADAPTER_CONFIG}", "tokenizer.json"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes()
    found, wanted = tensors_of(folder), tensors_of(expected)
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        if tensor.is_floating_point():
            assert float((found[name] - tensor).abs().max()) <= 0.02 * float(tensor.abs().max()), name


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[Ranks]:
    """A single rank that holds its parameters as one of several does."""
    distributed.init_process_group("gloo", f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield Ranks(mesh=init_device_mesh("cpu", (1,)))
    distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rank_has_its_part_of_the_base_as_it_computes_and_the_matrices_whole(
    house: House, one_rank: Ranks, dtype: str
) -> None:
    config = UpdateConfig.model_validate({"lora": {"rank": 4, "alpha": 8}, "dtype": dtype})
    assert config.lora is not None
    model = adapted_policy(house.store, house.policy, config, config.lora, 5, one_rank).model
    matrices = trained_parameters(model)
    assert len(matrices) == 2 * 7
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor) == (name not in matrices), name
        assert parameter.dtype == (torch.float32 if name in matrices else getattr(torch, dtype)), name
        assert parameter.requires_grad == (name in matrices), name


def test_ranks_make_the_adapter_of_one_process_which_goes_on_from_it(house: House) -> None:
    folder, _ = house.run(house.job(house.inputs(), **{**house.steps, "epochs": 1}))
    base = Ref("checkpoints", folder.name)
    shutil.rmtree(state_folder(folder))
    settings = {**STEPS, "minibatch_groups": 0, "kl_coef": 0.2}
    inputs = house.inputs(base, reference=[base])
    alone, expected = house.run(house.job(inputs, **settings))
    folder, found = house.run(house.job(inputs, **{**settings, "micro_tokens": 16}, launch={"processes": 2}))
    assert_alike(folder, alone)
    for step, wanted in zip(found["steps"], expected["steps"], strict=True):
        assert step["policy/grad_norm"] == pytest.approx(wanted["policy/grad_norm"], rel=1e-4)
        for name in ("policy/loss", "policy/kl_ref"):
            assert step[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-6)
    adapter = Ref("checkpoints", folder.name)
    assert base_ref(house.store, adapter) == base
    # An adapter begins with an optimiser of its own, so that nobody asked for the base's.
    assert not house.store.path(state_ref(base)).exists()
    further, report = house.run(house.job(house.inputs(adapter), **STEPS))
    assert base_ref(house.store, Ref("checkpoints", further.name)) == base
    assert report["metrics"]["mismatch/logp_diff_max"] < 1e-4
    assert {int(t) for name, t in tensors_of(further).items() if ": step." in name} == {3 + 6}


def test_a_killed_rank_is_named_and_another_number_of_ranks_goes_on_with_the_adapter(house: House) -> None:
    # Packs of one row are the same however they are divided: what bfloat16 rounds is, too.
    config = {**STEPS, "dtype": "bfloat16", "micro_tokens": 1}
    first, _ = house.run(house.job(house.inputs(), **config))
    inputs = house.inputs(Ref("checkpoints", first.name))
    alone, expected = house.run(house.job(inputs, **config))
    job = house.job(inputs, **config)
    job["config"]["launch"] = {"processes": 2}
    with pytest.raises(StageError, match=r"rank 1 of 2 .* was killed by SIGKILL"):
        house.run(job, beat=Kills(1, "step 2"))
    job["config"]["launch"] = {"processes": 3}
    folder, report = house.run(job)
    assert_alike(folder, alone)
    assert len(report["steps"]) == len(expected["steps"]) == 6
