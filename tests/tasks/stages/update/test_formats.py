"""Number formats of an update: what is computed in, saved, sampled from, and continued from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.store import Ref
from gradus.models.policy import load_policy
from gradus.models.training.checkpoint import write_policy
from gradus.tasks.artifacts.weights import LoadedPolicies, loaded_policy
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.update.train_state import KeptTraining
from tests.tasks.stages.update.conftest import replace_state, state_folder

House = Any
FORMATS = [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "policy")]


def chained(house: House, warm: Callable[[], Warm], **config: Any) -> list[Path]:
    """Three updates, each of the policy that the update before it made; rollouts are made anew from each."""
    folders: list[Path] = []
    policy = house.policy
    for _ in range(3):
        inputs = house.inputs(policy)
        folder, _ = house.run(house.job(inputs, **{**house.steps, **config}), warm())
        folders.append(folder)
        policy = Ref("checkpoints", folder.name)
    return folders


def narrowed(house: House, folder: Path) -> Ref:
    """The house's policy, saved in bfloat16."""
    policy = load_policy(house.store.path(house.policy), "bfloat16")
    folder.mkdir(parents=True, exist_ok=True)
    write_policy(policy, folder)
    return house.store.adopt(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "saved"), FORMATS)
def test_an_update_from_disk_is_that_of_a_warm_worker(
    new_house: Callable[[str], House], tmp_path: Path, dtype: str, saved: str
) -> None:
    kept, formats = Warm(), {"dtype": dtype, "saved_dtype": saved}
    first, second = new_house("warm"), new_house("cold")
    if saved == "policy":
        for each, name in ((first, "a"), (second, "b")):
            each.policy = narrowed(each, tmp_path / name)
    warm, cold = chained(first, lambda: kept, **formats), chained(second, Warm, **formats)
    assert all(first.same_files(one, two) for one, two in zip(warm, cold, strict=True))
    for key, policy in kept.of(LoadedPolicies).by_key.items():
        again = loaded_policy(first.store, Ref("checkpoints", key.digest), key.dtype, key.device)
        for (name, ours), theirs in zip(policy.model.named_parameters(), again.model.parameters(), strict=True):
            assert (ours.dtype, bool((ours == theirs).all())) == (theirs.dtype, True), (key, name)
    latest = kept.of(KeptTraining).latest
    assert latest is not None
    assert str(latest.train_state.model.dtype) == f"torch.{dtype}"


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["float32", "bfloat16"])
def test_the_policy_keeps_its_number_format_unless_another_is_asked_for(
    house: House, tmp_path: Path, saved: str
) -> None:
    house.policy = narrowed(house, tmp_path / "narrow")
    for folder in chained(house, Warm, saved_dtype="policy" if saved == "bfloat16" else saved):
        assert json.loads((folder / "config.json").read_text())["dtype"] == saved
        weights = load_file(folder / "model.safetensors")
        assert {str(tensor.dtype) for tensor in weights.values()} == {f"torch.{saved}"}
        assert (state_folder(folder) / "masters.safetensors").exists() is (saved == "bfloat16")
        assert str(load_policy(folder).model.dtype) == f"torch.{saved}"


@pytest.mark.slow
def test_masters_beside_rounded_weights_make_the_update_of_unrounded_ones(new_house: Callable[[str], House]) -> None:
    """Saving in bfloat16 must change what is sampled from, not what is learnt from the same rows."""
    exact, rounded = new_house("exact"), new_house("rounded")
    ends: list[dict[str, torch.Tensor]] = []
    for house, saved, file in ((exact, "float32", "model.safetensors"), (rounded, "bfloat16", "masters.safetensors")):
        first, _ = house.update(house.rows(), house.rewards, lr=1e-2, saved_dtype=saved)
        policy = Ref("checkpoints", first.name)
        rows = [{**row, "policy": policy.digest} for row in house.rows()]
        inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [policy]}
        second, _ = house.run(house.job(inputs, lr=1e-2, saved_dtype=saved))
        ends.append(load_file((second if saved == "float32" else state_folder(second)) / file))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not house.same_files(first, second)


@pytest.mark.slow
def test_another_policys_masters_and_formats_that_no_update_writes_are_refused(house: House, tmp_path: Path) -> None:
    made, _ = house.update(house.rows(), house.rewards, lr=1e-2, saved_dtype="bfloat16")
    strange = tmp_path / "strange"
    strange.mkdir()
    for path in made.iterdir():
        if path.is_file() and not path.name.startswith("_"):
            (strange / path.name).write_bytes(path.read_bytes())
    narrow = house.store.path(narrowed(house, tmp_path / "narrow"))
    (strange / "model.safetensors").write_bytes((narrow / "model.safetensors").read_bytes())
    house.policy = house.store.adopt(strange)
    with pytest.raises(CorruptArtifactError, match="is the train state of other weights than checkpoints/"):
        house.update(house.rows(), house.rewards)
    replace_state(house.store, made, house.policy)
    with pytest.raises(
        CorruptArtifactError, match=r"masters\.safetensors is not what the policy's .* rounded .*for a f"
    ):
        house.update(house.rows(), house.rewards)

    wide = load_policy(house.store.path(house.other), "float32")
    wide.model.double().save_pretrained(tmp_path / "wide")
    wide.tokenizer.save_pretrained(tmp_path / "wide")
    house.policy = house.store.adopt(tmp_path / "wide")
    with pytest.raises(BadInputError, match=r"saved in float64, which no update writes; set update\.saved_dtype"):
        house.update(house.rows(), house.rewards)
    house.update(house.rows(), house.rewards, saved_dtype="float32")


def test_settings_that_are_not_set_leave_identities_as_they_are() -> None:
    assert not {"dtype", "saved_dtype"} & UpdateConfig().identified().keys()
    assert UpdateConfig(dtype="bfloat16").identified()["dtype"] == "bfloat16"


def test_activations_that_are_computed_again_change_no_bit(house: House) -> None:
    plain, _ = house.update(house.rows(), house.rewards, **house.steps)
    again, _ = house.update(house.rows(), house.rewards, **house.steps, activation_checkpointing=True)
    assert house.same_files(plain, again)
