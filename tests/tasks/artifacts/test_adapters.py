"""Adapters as policies: what is kept in the lake, what a rollout depends on, what is refused, and at once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError, CorruptArtifactError, StageError, UsageError
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import Policy, load_policy, new_policy
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.artifacts.policies import base_ref, refuse_training
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.artifacts.weights import LoadedPolicies, PolicyKey
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute

Adapted = Callable[..., Path]
PLAN = pa.table(
    {
        "problem_id": ["a"],
        "group_id": ["a@r0h0"],
        "n": pa.array([6], pa.int32()),
        "max_tokens": pa.array([16], pa.int32()),
    }
)
PROBLEMS = pa.table({"problem_id": ["a"], "question": ["1 + 2 ="], "answer": ["3"]})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return saved(tmp_path / "base", 0)


def tiny(seed: int) -> Policy:
    return new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=128, seed=seed)


def saved(folder: Path, seed: int) -> Path:
    policy = tiny(seed)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def adapted(base: Path, make_adapter: Adapted) -> Adapted:
    """Make an adapter of `base`, which it calls by its path."""

    def make(name: str, called: str | None = None, **settings: Any) -> Path:
        return make_adapter(base.parent / name, tiny(0), str(base) if called is None else called, **settings)

    return make


def rolled_out(store: Store, policy: Ref, warm: Warm | None = None, **options: Any) -> list[dict[str, Any]]:
    inputs = {"plan": [str(store.put("plan", PLAN))], "problems": [str(store.put("problems", PROBLEMS))]}
    job = Job("rollout", str(store.root), f"rollouts/{policy.digest}", {**inputs, "policy": [str(policy)]}, options, 5)
    execute(vars(job), warm or Warm(), lambda _frac, text="": None)
    return store.read(Ref.parse(job.output)).to_pylist()


def test_the_base_is_an_artifact_of_its_own_and_the_adapters_digest_depends_on_both(
    store: Store, base: Path, adapted: Adapted
) -> None:
    folder = adapted("first")
    (folder / "optimizer.pt").write_bytes(b"of no use here")
    ref, whole = resolve_artifact(store, str(folder), "checkpoints"), resolve_artifact(store, str(base), "checkpoints")
    assert base_ref(store, ref) == whole
    assert base_ref(store, whole) is None
    assert {each.name for each in store.manifest(ref).files} == {ADAPTER_CONFIG, ADAPTER_WEIGHTS}
    assert json.loads((store.path(ref) / ADAPTER_CONFIG).read_text())["base_model_name_or_path"] == f"../{whole.digest}"
    # Another way of naming the same base is the same policy; another base, or other weights, is not.
    assert resolve_artifact(store, f"{folder}+{whole}", "checkpoints") == ref
    beside = shutil.copytree(folder, base.parent / "beside")
    named = json.loads((beside / ADAPTER_CONFIG).read_text()) | {"base_model_name_or_path": "../base"}
    (beside / ADAPTER_CONFIG).write_text(json.dumps(named))
    assert resolve_artifact(store, str(beside), "checkpoints") == ref
    other = f"{folder}+{saved(base.parent / 'other', 1)}"
    assert resolve_artifact(store, other, "checkpoints") != ref
    assert resolve_artifact(store, str(adapted("second", seed=8)), "checkpoints") != ref


def test_rollouts_name_the_adapter_and_are_sampled_from_base_and_adapter_merged(
    store: Store, base: Path, adapted: Adapted
) -> None:
    ref = resolve_artifact(store, str(adapted("first", seed=1)), "checkpoints")
    warm = Warm()
    rows = rolled_out(store, ref, warm)
    assert {row["policy"] for row in rows} == {ref.digest}
    merged = merged_and_kept(store, ref, base.parent / "merged")
    expected = rolled_out(store, merged)
    sampled = ["completion_tokens", "logprobs", "finish_reason", "seed"]
    assert [[row[name] for name in sampled] for row in rows] == [[row[name] for name in sampled] for row in expected]
    of_base = rolled_out(store, resolve_artifact(store, str(base), "checkpoints"))
    assert [row["completion_tokens"] for row in rows] != [row["completion_tokens"] for row in of_base]


def merged_and_kept(store: Store, ref: Ref, folder: Path) -> Ref:
    """The merged policy as a whole one."""
    policy = load_policy(store.path(ref))
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return store.adopt(folder)


def test_another_adapter_under_the_same_name_is_caught(store: Store, adapted: Adapted) -> None:
    first, second = (resolve_artifact(store, str(adapted(name, seed=i)), "checkpoints") for i, name in enumerate("ab"))
    stale = Warm()
    stale.of(LoadedPolicies).by_key[PolicyKey(second.digest, "auto", "auto")] = load_policy(store.path(first))
    with pytest.raises(StageError, match=r"the sampler does not hold the policy's weights: .*down_proj"):
        rolled_out(store, second, stale)


def test_a_flipped_bit_in_the_base_is_found_from_the_adapter(store: Store, adapted: Adapted) -> None:
    ref = resolve_artifact(store, str(adapted("first")), "checkpoints")
    below = base_ref(store, ref)
    assert below is not None
    path = store.path(below) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptArtifactError, match=r"model\.safetensors does not have the bytes"):
        rolled_out(Store(store.root), ref)


@pytest.mark.parametrize("stage", ["update", "warmstart"])
def test_training_an_adapter_as_a_whole_policy_is_refused(store: Store, adapted: Adapted, stage: str) -> None:
    ref = resolve_artifact(store, str(adapted("first")), "checkpoints")
    problems = [str(store.put("problems", PROBLEMS))]
    job = Job(stage, str(store.root), f"checkpoints/{'a' * 32}", {"policy": [str(ref)], "problems": problems}, {}, 0)
    with pytest.raises(BadInputError, match=r"is an adapter: update\.lora trains it") as refused:
        execute(vars(job), Warm(), lambda _frac, text="": None)
    assert refused.value.hint == f'set update.lora="{{rank=4, alpha=6}}", or `gradus export {ref} --merge --to FOLDER`'
    below = base_ref(store, ref)
    assert below is not None
    refuse_training(store, below)


def test_a_lake_folder_of_an_adapter_brings_its_base_along(store: Store, adapted: Adapted, tmp_path: Path) -> None:
    ref = resolve_artifact(store, str(adapted("first")), "checkpoints")
    other = Store(tmp_path / "elsewhere")
    assert resolve_artifact(other, str(store.path(ref)), "checkpoints") == ref
    assert rolled_out(other, ref) == rolled_out(store, ref)


def test_what_is_no_adapter_or_has_no_base_is_told_with_what_to_type(
    store: Store, base: Path, adapted: Adapted
) -> None:
    first = adapted("first")
    cases: list[tuple[str, type[Exception], str]] = [
        (f"{base}+{base}", UsageError, "base is no adapter"),
        (f"{first}+{adapted('upon')}", BadInputError, "the base of .*first is an adapter itself"),
        (str(adapted("unnamed", "")), BadInputError, "does not name the adapter's base"),
        (str(adapted("hub", "someone/model")), UsageError, "someone/model is no folder; .* needs its revision"),
    ]
    for text, error, message in cases:
        with pytest.raises(error, match=message):
            resolve_artifact(store, text, "checkpoints")
    (first / ADAPTER_WEIGHTS).rename(first / "adapter_model.bin")
    with pytest.raises(BadInputError, match="other formats can run code"):
        resolve_artifact(store, str(first), "checkpoints")
    (first / ADAPTER_CONFIG).write_text("{")
    with pytest.raises(BadInputError, match=r"adapter_config\.json is not JSON"):
        resolve_artifact(store, str(first), "checkpoints")
    bad = resolve_artifact(store, str(adapted("dora", use_dora=True)), "checkpoints")
    with pytest.raises(BadInputError, match="sets use_dora, which is not supported"):
        rolled_out(store, bad)


def test_sleep_leaves_the_identity_of_rollouts_alone() -> None:
    awake, asleep = (RolloutConfig.model_validate({"vllm": {"sleep": value}}) for value in (False, True))
    assert awake.identified() == asleep.identified()
