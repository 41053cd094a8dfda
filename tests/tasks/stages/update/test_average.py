"""The moving average of the weights: its formula, a policy of its own, a reference, killed and resumed updates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gradus.data.errors import BadInputError, CorruptArtifactError, UsageError
from gradus.data.lake.store import Ref
from gradus.models.policy import load_policy
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.tasks.artifacts.resolve import export, resolve_artifact
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.preflight.checks import check_input
from gradus.tasks.stages.update.train_state import KeptTraining
from tests.tasks.stages.update.conftest import state_folder
from tests.tasks.stages.update.test_formats import FORMATS, chained

House = Any
DECAY = 0.75


def averages(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(state_folder(folder) / "ema.safetensors")


def test_the_average_follows_the_masters_by_its_formula(house: House) -> None:
    model = load_policy(house.store.path(house.policy), "bfloat16").model
    found = TrainState(model, StepConfig(lr=1e-2, ema_decay=DECAY), 0)
    found.adopt(StepConfig(lr=1e-2, ema_decay=DECAY))
    expected = {name: master.detach().double() for name, master in found.masters.items()}
    for _ in range(3):
        for master in found.masters.values():
            master.grad = torch.ones_like(master)
        found.advance()
        for name, master in found.masters.items():
            expected[name] = DECAY * expected[name] + (1 - DECAY) * master.detach().double()
    for name, average in found.average.items():
        assert average.dtype == torch.float32
        assert torch.allclose(average.double(), expected[name], atol=1e-7), name
        assert not torch.equal(average, found.masters[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "saved"), [("float32", "float32"), FORMATS[2]])
def test_warm_and_cold_updates_leave_the_same_average(
    new_house: Callable[[str], House], dtype: str, saved: str
) -> None:
    kept = Warm()
    first, second = new_house("warm"), new_house("cold")
    config = {"dtype": dtype, "saved_dtype": saved, "ema_decay": DECAY, "lr": 1e-3}
    warm, cold = chained(first, lambda: kept, **config), chained(second, Warm, **config)
    for one, two in zip(warm, cold, strict=True):
        assert first.same_files(one, two)
        assert (one / "ema" / "model.safetensors").read_bytes() == (two / "ema" / "model.safetensors").read_bytes()
        policy = load_policy(one / "ema").model
        assert str(policy.dtype) == f"torch.{saved}"
        for name, average in averages(one).items():
            assert torch.equal(policy.get_parameter(name), average.to(policy.dtype)), name
    assert any(not torch.equal(averages(warm[0])[name], averages(warm[1])[name]) for name in averages(warm[0]))


@pytest.mark.slow
def test_an_interrupted_update_and_a_repeated_one_have_the_same_average(house: House) -> None:
    given = house.inputs()
    config = {**house.steps, "ema_decay": DECAY}
    calm, _ = house.run(house.job(given, **config))
    job = house.job(given, **config)
    house.interrupt(job, "step 3 of 4")
    resumed, _ = house.run(job)
    assert house.same_files(calm, resumed)
    house.run({**job, "forced": True})
    house.store.verify(Ref("checkpoints", resumed.name))
    assert house.same_files(calm, resumed)


@pytest.mark.slow
def test_without_decay_there_is_no_average_and_one_that_there_was_is_let_go(house: House) -> None:
    warm = Warm()
    first, _ = house.run(house.job(house.inputs(), ema_decay=DECAY), warm)
    policy = Ref("checkpoints", first.name)
    second, _ = house.run(house.job(house.inputs(policy)), warm)
    cold, _ = house.run(house.job(house.inputs(policy)))
    for folder in (second, cold):
        assert not (state_folder(folder) / "ema.safetensors").exists()
        assert not (folder / "ema").exists()
    latest = warm.of(KeptTraining).latest
    assert latest is not None
    assert latest.train_state.average == {}


def test_the_average_is_a_policy_by_its_reference_and_by_its_path(house: House, tmp_path: Path) -> None:
    folder, _ = house.update(house.rows(), house.rewards, **house.steps, ema_decay=DECAY)
    name = f"checkpoints/{folder.name}"
    check_input(house.store.root, f"{name}/ema", "checkpoints")
    ref = resolve_artifact(house.store, f"{name}/ema", "checkpoints")
    assert resolve_artifact(house.store, str(folder / "ema"), "checkpoints") == ref
    copied = export(house.store, Ref("checkpoints", folder.name), tmp_path / "out")
    assert resolve_artifact(house.store, str(copied / "ema"), "checkpoints") == ref
    weights = house.weights(house.store.path(ref))
    assert all(torch.equal(weights[key], average) for key, average in averages(folder).items())
    house.store.verify(ref)


@pytest.mark.slow
def test_an_average_that_is_not_there_or_has_other_bytes_is_refused(house: House) -> None:
    plain, _ = house.update(house.rows(), house.rewards)
    missing = f"checkpoints/{plain.name}/ema"
    for refuse in (check_input, lambda _root, text, table: resolve_artifact(house.store, text, table)):
        with pytest.raises(UsageError, match=r"has no moving average.*update\.ema_decay"):
            refuse(house.store.root, missing, "checkpoints")
    folder, _ = house.update(house.rows(), house.rewards, ema_decay=DECAY)
    file = folder / "ema" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for text in (f"checkpoints/{folder.name}/ema", str(folder / "ema")):
        with pytest.raises(CorruptArtifactError, match=r"ema.model\.safetensors does not have the bytes"):
            resolve_artifact(house.store, text, "checkpoints")
    with pytest.raises(CorruptArtifactError, match="does not have the bytes"):
        house.store.verify(Ref("checkpoints", folder.name))


@pytest.mark.slow
def test_a_moving_reference_is_the_average_given_as_a_reference(house: House) -> None:
    first, report = house.update(
        house.rows(), house.rewards, lr=1e-2, warmup_steps=0, ema_decay=DECAY, reference="ema", kl_coef=0.3
    )
    assert report["metrics"]["policy/kl_ref"] == pytest.approx(0.0, abs=1e-9)  # the average begins as the policy
    policy = Ref("checkpoints", first.name)
    average = resolve_artifact(house.store, f"{policy}/ema", "checkpoints")
    settings = {"lr": 1e-2, "warmup_steps": 0, "ema_decay": DECAY, "kl_coef": 0.3}
    moving, seen = house.run(house.job(house.inputs(policy), **settings, reference="ema"))
    given, _ = house.run(house.job(house.inputs(policy, reference=[average]), **settings))
    free, _ = house.run(house.job(house.inputs(policy), **{**settings, "kl_coef": 0.0}))
    assert seen["metrics"]["policy/kl_ref"] > 0
    assert house.same_files(moving, given)
    assert not house.same_files(moving, free)


def test_settings_of_the_average() -> None:
    assert not {"ema_decay", "reference"} & UpdateConfig().identified().keys()
    with pytest.raises(ValueError, match="reference = ema needs a moving average: set ema_decay"):
        UpdateConfig(reference="ema")
    config = UpdateConfig(reference="ema", ema_decay=0.9, kl_coef=0.1)
    assert (config.needs_reference, config.loads_reference) == (True, False)
    assert UpdateConfig(kl_coef=0.1).loads_reference


@pytest.mark.slow
def test_an_average_that_no_manifest_names_is_not_taken(house: House, tmp_path: Path) -> None:
    inputs = house.inputs()
    averaged, _ = house.run(house.job(inputs, ema_decay=DECAY))
    plain, _ = house.run(house.job(inputs))
    out = tmp_path / "out"
    export(house.store, Ref("checkpoints", averaged.name), out)
    assert (out / "ema" / "model.safetensors").is_file()
    export(house.store, Ref("checkpoints", plain.name), out)
    assert not [path.name for path in out.rglob("*") if path.is_file() and "ema" in str(path.relative_to(out))]
    (out / "ema").mkdir(exist_ok=True)
    for path in (averaged / "ema").iterdir():
        (out / "ema" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(BadInputError, match="belongs to no checkpoint"):
        resolve_artifact(house.store, str(out / "ema"), "checkpoints")
    (averaged / "_manifest.json").unlink()
    with pytest.raises(CorruptArtifactError, match="has no manifest"):
        resolve_artifact(house.store, f"checkpoints/{averaged.name}/ema", "checkpoints")
