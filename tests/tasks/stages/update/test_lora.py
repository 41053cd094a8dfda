"""Updates that train an adapter: checkpoints and their base, warm and cold, killed and resumed, what is refused."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import POINTER
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import state_ref, updates_since_kept
from gradus.models.policy import load_policy
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from gradus.models.training.passes import all_tokens
from gradus.tasks.artifacts.policies import base_ref
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.artifacts.weights import LoadedPolicies
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.preflight.checks import SAMPLES
from gradus.tasks.runtime.calls import execute
from gradus.tasks.stages.update import roles
from gradus.tasks.stages.update.train_state import KeptTraining
from tests.tasks.stages.attempts import attempted
from tests.tasks.stages.update.conftest import state_folder
from tests.tasks.stages.update.test_formats import chained

House = Any
LORA: dict[str, Any] = {"rank": 4, "alpha": 8}
CONFIG: dict[str, Any] = {"lora": LORA, "lr": 1e-2}


def updated(house: House, policy: Ref, warm: Warm | None = None, **config: Any) -> tuple[Ref, dict[str, Any]]:
    """The adapter that an update of four steps makes of a policy, and its report."""
    folder, report = house.run(house.job(house.inputs(policy), **{**house.steps, **CONFIG, **config}), warm)
    return Ref("checkpoints", folder.name), report


def steps_taken(house: House, ref: Ref) -> int:
    return json.loads((state_folder(house.store.path(ref)) / "state.json").read_text())["step"]


def same_adapters(first: Path, second: Path) -> bool:
    """Whether two checkpoints of adapters hold the same, but for their manifests and reports."""
    names = {str(p.relative_to(first)) for p in first.rglob("*") if p.is_file()}
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "tokenizer.json", "rows.parquet"} <= names
    assert not [name for name in names if name.startswith(("model", "config."))]
    states = state_folder(first), state_folder(second)
    kept = {path.name for path in states[0].iterdir()} - {"_manifest.json"}
    assert {"optimizer.safetensors", "state.json"} <= kept
    assert not [name for name in kept if name.startswith("masters")]
    pairs = [(first / name, second / name) for name in names - {"_manifest.json", "_report.json", POINTER}]
    pairs += [(states[0] / name, states[1] / name) for name in kept]
    return all(one.read_bytes() == other.read_bytes() for one, other in pairs)


def test_the_next_policy_is_an_adapter_that_names_its_base_and_moved(house: House) -> None:
    ref, report = updated(house, house.policy)
    assert report["summary"]["updates"] == 4
    assert base_ref(house.store, ref) == house.policy
    assert house.store.manifest(ref).parents["policy"] == [str(house.policy)]
    config = json.loads((house.store.path(ref) / ADAPTER_CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, f"../{house.policy.digest}")
    tensors = load_file(house.store.path(ref) / ADAPTER_WEIGHTS)
    assert len(tensors) == 2 * 7
    assert all(bool(t.any()) and t.dtype == torch.float32 for t in tensors.values())
    # Rollouts of the merged policy pass the next update's gate: sampler and trainer agree but for rounding.
    again, second = updated(house, ref)
    assert second["metrics"]["mismatch/logp_diff_max"] < 1e-4
    assert base_ref(house.store, again) == house.policy
    assert steps_taken(house, again) == 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_warm_and_cold_workers_make_the_same_adapters(new_house: Callable[[str], House], dtype: str) -> None:
    kept = Warm()
    first, second = new_house("warm"), new_house("cold")
    config = {**CONFIG, "dtype": dtype, "ema_decay": 0.75, "activation_checkpointing": True}
    warm, cold = chained(first, lambda: kept, **config), chained(second, Warm, **config)
    assert all(same_adapters(one, two) for one, two in zip(warm, cold, strict=True))
    assert kept.of(KeptTraining).digest == warm[-1].name
    assert kept.of(KeptTraining).latest is not None
    assert not kept.of(LoadedPolicies).by_key  # sampled from as it is loaded from disk


def test_a_train_state_that_is_gone_is_computed_again_from_the_first_adapter(house: House) -> None:
    """The base was trained, too: its own updates are not repeated for an adapter, which began with a new optimiser."""
    base, _ = updated(house, house.policy, lora=None)
    first, _ = updated(house, base, ema_decay=0.5)
    second, _ = updated(house, first, ema_decay=0.5)
    kept = {path.name: path.read_bytes() for path in state_folder(house.store.path(second)).iterdir()}
    expected, _ = updated(house, second, ema_decay=0.5)
    for ref in (base, first, second):
        shutil.rmtree(house.store.path(state_ref(ref)))
    assert updates_since_kept(house.store, second) == [first, second]
    again, _ = updated(house, second, ema_decay=0.5)
    found = {path.name: path.read_bytes() for path in state_folder(house.store.path(second)).iterdir()}
    assert found == kept
    assert not house.store.path(state_ref(base)).exists()
    assert same_adapters(house.store.path(again), house.store.path(expected))


def test_the_average_of_an_adapter_is_an_adapter_of_the_same_base(house: House) -> None:
    ref, _ = updated(house, house.policy, ema_decay=0.5)
    average = resolve_artifact(house.store, f"{ref}/ema", "checkpoints")
    assert base_ref(house.store, average) == house.policy
    found, last = (load_file(house.store.path(each) / ADAPTER_WEIGHTS) for each in (average, ref))
    kept = load_file(state_folder(house.store.path(ref)) / "ema.safetensors")
    for name, tensor in found.items():
        inner = name.removeprefix("base_model.model.").replace(".weight", ".default.weight")
        assert torch.equal(tensor, kept[inner])
        assert not torch.equal(tensor, last[name])
    load_policy(house.store.path(ref) / "ema")


def test_a_killed_update_of_an_adapter_is_repeated_to_the_same_bits(house: House) -> None:
    first, _ = updated(house, house.policy)
    given, config = house.inputs(first), {**house.steps, **CONFIG}
    calm, _ = house.run(house.job(given, **config))
    job = house.job(given, **config)
    killed = attempted(job, fault="update:after_step#3")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    execute(job, Warm(), lambda _frac, _text="": None)
    assert same_adapters(house.store.path(Ref.parse(job["output"])), calm)


def test_the_reference_is_the_model_without_its_layers_and_equals_the_base_loaded_apart(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = updated(house, house.policy)
    config = {**house.steps, **CONFIG, "kl_coef": 0.5}
    seen: list[torch.Tensor] = []

    def recorded(*args: Any) -> Any:
        found = all_tokens(*args)
        seen.append(found.logp)
        return found

    monkeypatch.setattr(roles, "all_tokens", recorded)
    off, report = house.run(house.job(house.inputs(first, reference=[house.policy]), **config))
    monkeypatch.setattr(roles, "refers_to_base", lambda *_: False)
    apart, _ = house.run(house.job(house.inputs(first, reference=[house.policy]), **config))
    assert torch.equal(*seen)
    assert same_adapters(off, apart)
    assert report["metrics"]["policy/kl_ref"] > 0
    # Another policy, or another adapter, is loaded.
    monkeypatch.undo()
    for other in (house.other, first):
        elsewhere, _ = house.run(house.job(house.inputs(first, reference=[other]), **config))
        assert not same_adapters(off, elsewhere)


def test_no_second_model_is_loaded_for_the_base_as_reference(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "loaded_policy", lambda *_: pytest.fail("a model was loaded for the reference"))
    given = house.inputs(reference=[house.policy])
    _, report = house.run(house.job(given, **{**house.steps, **CONFIG, "kl_coef": 0.1}))
    assert report["summary"]["updates"] == 6  # the group without variance has a KL to learn from


def test_a_whole_update_of_the_same_rows_takes_other_steps_and_leaves_a_whole_policy(house: House) -> None:
    ref, _ = updated(house, house.policy, lora=None)
    assert base_ref(house.store, ref) is None
    # An adapter of a policy in training begins with an optimiser of its own.
    first, _ = updated(house, ref)
    assert base_ref(house.store, first) == ref
    assert steps_taken(house, first) == 4


def test_a_users_adapter_is_gone_on_from_with_fitting_settings_alone(
    house: House, make_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    whole = load_policy(house.store.path(house.policy))
    make_adapter(tmp_path / "own", whole, str(house.store.path(house.policy)))
    ref = resolve_artifact(house.store, str(tmp_path / "own"), "checkpoints")
    fitting = {"rank": 4, "alpha": 6, "targets": ["q_proj", "v_proj", "down_proj"]}
    found, _ = updated(house, ref, lora=fitting)
    assert base_ref(house.store, found) == house.policy
    before, after = (load_file(house.store.path(each) / ADAPTER_WEIGHTS) for each in (ref, found))
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before)
    cases: list[tuple[Any, str]] = [
        (None, "is an adapter: update.lora trains it"),
        ({**fitting, "rank": 8}, "is an adapter of rank 4, and update.lora has rank = 8"),
        ({**fitting, "alpha": 32}, "is an adapter of alpha 6, and update.lora has alpha = 32"),
        ({"rank": 4, "alpha": 6}, r"does not adapt .*, other than update.lora \(4 layers differ\)"),
        ({**fitting, "targets": ["q_prj"]}, "q_prj is no linear layer to adapt; the policy has down_proj"),
    ]
    for lora, message in cases:
        with pytest.raises(BadInputError, match=message) as refused:
            updated(house, ref, lora=lora)
        assert "update.lora" in refused.value.hint


def test_an_adapter_for_another_base_is_refused(
    house: House, make_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    ref, _ = updated(house, house.policy)
    with pytest.raises(
        BadInputError, match="is an adapter for another base: it was trained on checkpoints/"
    ) as refused:
        resolve_artifact(house.store, f"{house.store.path(ref)}+{house.other}", "checkpoints")
    assert str(house.store.path(ref)) in refused.value.hint
    larger = load_policy(SAMPLES / "policy")
    make_adapter(tmp_path / "larger", larger, "")
    odd = resolve_artifact(house.store, f"{tmp_path / 'larger'}+{house.policy}", "checkpoints")
    fitting = {"rank": 4, "alpha": 6, "targets": ["q_proj", "v_proj", "down_proj"]}
    rows = [{**row, "policy": odd.digest} for row in house.rows()]
    given = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [odd]}
    with pytest.raises(BadInputError, match=r"does not fit its base: it adapts .* of shape"):
        house.run(house.job(given, **house.steps, lora=fitting))


def test_settings_without_an_adapter_keep_their_identities_and_bad_ones_are_refused() -> None:
    assert "lora" not in UpdateConfig().identified()
    found = UpdateConfig.model_validate({"lora": {}}).identified()["lora"]
    assert found == {"rank": 16, "alpha": 32, "targets": "all-linear"}
    for bad in ({"rank": 0}, {"targets": []}, {"targets": "q_proj"}, {"dropout": 0.1}, {"quantize": "int3"}):
        with pytest.raises(ValueError, match="lora"):
            UpdateConfig.model_validate({"lora": bad})
    with pytest.raises(ValueError, match="matrices of an adapter are saved in float32"):
        UpdateConfig.model_validate({"lora": {}, "saved_dtype": "bfloat16"})
    with pytest.raises(ValueError, match="weights in 4 bits stay on their GPU"):
        UpdateConfig.model_validate({"lora": {"quantize": "nf4"}, "between_updates": "host"})
