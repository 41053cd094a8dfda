"""Rollout and update as stages on a real store: shards resumed, gates closed, warm the same as loaded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from gradus.data.errors import BadInputError, GateError, StageError
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.models.policy import new_policy
from gradus.models.templates import PromptStyle
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.runtime.attempt import Job, execute
from gradus.tasks.stages.warm import Warm
from gradus.tasks.stages.warmstart import examples_of

PROBLEMS = pa.table({"problem_id": ["a", "b"], "question": ["1 + 2 =", "3 + 4 ="], "answer": ["3", "7"]})
PLAN = pa.table(
    {
        "problem_id": ["a", "b", "a"],
        "group_id": ["a@r1h0", "b@r1h0", "a@r1h1"],
        "n": pa.array([4, 4, 4], pa.int32()),
        "hint_level": pa.array([0, 0, 1], pa.int32()),
        "hint_text": [None, None, "1+2="],
        "temperature": [1.0] * 3,
        "max_tokens": pa.array([6] * 3, pa.int32()),
        "seed": [1, 2, 3],
    }
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "lake")


def policy(store: Store, folder: Path, seed: int = 0) -> Ref:
    made = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=seed)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return store.adopt(folder)


def stage(store: Store, name: str, table: str, digit: str, warm: Warm | None = None, **options: Any) -> Any:
    ref = Ref(table, digit * 32)
    inputs = {role: [str(r) for r in refs] for role, refs in options.pop("inputs").items()}
    job = Job(stage=name, lake=str(store.root), output=str(ref), inputs=inputs, config=options, seed=5)
    report = execute(job.to_json(), warm or Warm(), lambda _frac, _text="": None)
    return ref, report


def test_a_warm_start_sees_the_prompts_of_the_settings() -> None:
    made = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=64, seed=0)
    rows = [{"problem_id": "a", "question": "1 + 2 =", "messages": None, "solution": "1+2=3", "answer": "3"}]
    ctx: Any = SimpleNamespace(table=lambda _name, _columns: pa.Table.from_pylist(rows))
    (example,) = examples_of(ctx, made, PromptStyle("4 + 4", "{question} 0\n{hint}"), "{solution}")
    assert made.tokenizer.decode(example.prompt) == "4 + 4\n\n1 + 2 = 0\n"
    (plain,) = examples_of(ctx, made, PromptStyle(), "{solution}")
    assert made.tokenizer.decode(plain.prompt) == "1 + 2 =\n"


def rolled_out(store: Store, used: Ref, digit: str = "1", **options: Any) -> tuple[Ref, Any]:
    inputs = {"plan": [store.put("plan", PLAN)], "problems": [store.put("problems", PROBLEMS)], "policy": [used]}
    return stage(store, "rollout", "rollouts", digit, inputs=inputs, **options)


def scored(store: Store, rollouts: Ref, rewards: list[float | None]) -> Ref:
    ids = store.read(rollouts, ["rollout_id", "problem_id"])
    correct = pa.array([None if r is None else r > 0 for r in rewards])
    return store.put(
        "scores", ids.append_column("reward", pa.array(rewards, pa.float64())).append_column("correct", correct)
    )


def test_shards_do_not_change_what_is_generated_and_finished_ones_are_kept(store: Store, tmp_path: Path) -> None:
    used = policy(store, tmp_path / "p")
    whole, report = rolled_out(store, used)
    assert (report["summary"]["rows"], report["summary"]["shards"]) == (12, 1)
    split, report = rolled_out(store, used, "2", shard_rows=4)
    assert report["summary"]["shards"] == 3
    columns = ["group_id", "sample", "completion_tokens", "hint_text"]
    assert store.read(split, columns).to_pylist() == store.read(whole, columns).to_pylist()
    folder = store.path(split)
    before = store.read(split)
    (folder / "_manifest.json").unlink()
    writer = store.writer(split)
    writer.write_table(before.slice(0, 4), 0)  # as an attempt that was killed after its first shard
    _, again = rolled_out(store, used, "2", shard_rows=4)
    assert again["summary"]["shards_reused"] == 1
    assert store.read(split) == before


def test_a_prompt_that_does_not_fit_names_its_problem(store: Store, tmp_path: Path) -> None:
    used = policy(store, tmp_path / "p")
    long = pa.table({"problem_id": ["a"], "question": ["1 + " * 40]})
    inputs = {
        "plan": [store.put("plan", PLAN.slice(0, 1))],
        "problems": [store.put("problems", long)],
        "policy": [used],
    }
    with pytest.raises(BadInputError, match="the prompt of problem a has"):
        stage(store, "rollout", "rollouts", "1", inputs=inputs)


def test_an_update_learns_and_a_warm_train_state_is_a_loaded_one(store: Store, tmp_path: Path) -> None:
    used = policy(store, tmp_path / "p")
    rollouts, _ = rolled_out(store, used)
    scores = scored(store, rollouts, [0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0])
    inputs = {"rollouts": [rollouts], "scores": [scores], "policy": [used]}
    warm = Warm()
    first, report = stage(store, "update", "checkpoints", "a", warm, inputs=inputs)
    # The failed bare group of problem a was tried again under a hint: only its last try counts.
    assert report["summary"]["replaced_groups"] == 1
    assert (report["summary"]["groups"], report["summary"]["updates"]) == (2, 1)
    plan = {"plan": [store.put("plan", PLAN)], "problems": [store.put("problems", PROBLEMS)], "policy": [first]}
    more, _ = stage(store, "rollout", "rollouts", "3", warm, inputs=plan)
    cold, _ = stage(store, "rollout", "rollouts", "4", inputs=plan)
    columns = ["completion_tokens", "logprobs"]
    assert store.read(more, columns) == store.read(cold, columns)
    inputs = {"rollouts": [more], "scores": [scored(store, more, [1, 0, 0, 0] * 3)], "policy": [first]}
    warmed, _ = stage(store, "update", "checkpoints", "b", warm, inputs=inputs)
    loaded, _ = stage(store, "update", "checkpoints", "c", inputs=inputs)
    for name in ("optimizer.safetensors", "state.json"):
        assert (store.path(state_ref(warmed)) / name).read_bytes() == (
            store.path(state_ref(loaded)) / name
        ).read_bytes()
    assert store.read_file(warmed, "model.safetensors") == store.read_file(loaded, "model.safetensors")
    assert (store.path(warmed) / "model.safetensors").read_bytes() != (
        store.path(first) / "model.safetensors"
    ).read_bytes()
    assert not list(store.path(warmed).glob("*.bin")) + list(store.path(warmed).glob("*.pt"))


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([1.0] * 12, "there is nothing to learn from"),
        ([None] * 12, "no rollout has a reward"),
    ],
)
def test_an_update_without_signal_fails(
    store: Store, tmp_path: Path, rewards: list[float | None], message: str
) -> None:
    used = policy(store, tmp_path / "p")
    rollouts, _ = rolled_out(store, used)
    inputs = {"rollouts": [rollouts], "scores": [scored(store, rollouts, rewards)], "policy": [used]}
    with pytest.raises(GateError, match=message):
        stage(store, "update", "checkpoints", "a", inputs=inputs)


def test_rollouts_of_another_policy_are_refused(store: Store, tmp_path: Path) -> None:
    used, other = policy(store, tmp_path / "p"), policy(store, tmp_path / "q", seed=1)
    rollouts, _ = rolled_out(store, used)
    inputs = {"rollouts": [rollouts], "scores": [scored(store, rollouts, [1, 0] * 6)], "policy": [other]}
    with pytest.raises(GateError, match="12 of 12 rollouts were sampled from another policy"):
        stage(store, "update", "checkpoints", "a", inputs=inputs)


def test_a_sampler_with_other_weights_than_it_says_is_caught(store: Store, tmp_path: Path) -> None:
    used, other = policy(store, tmp_path / "p"), policy(store, tmp_path / "q", seed=1)
    rollouts, _ = rolled_out(store, used)
    rows = store.read(rollouts)
    lied = store.put("rollouts", rows.set_column(rows.column_names.index("policy"), "policy", [[other.digest] * 12]))
    inputs = {"rollouts": [lied], "scores": [scored(store, lied, [1, 0] * 6)], "policy": [other]}
    with pytest.raises(GateError, match="sampler and trainer disagree by"):
        stage(store, "update", "checkpoints", "a", inputs=inputs, max_logp_diff=0.001)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_told_of_by_every_stage_that_computes(store: Store, tmp_path: Path) -> None:
    used = policy(store, tmp_path / "p")
    rollouts, _ = rolled_out(store, used)
    scores = scored(store, rollouts, [1, 0, 0, 0] * 3)
    problems = PROBLEMS.append_column("messages", pa.nulls(2)).append_column("solution", [["1+2=3"]] * 2)
    plan = {"plan": [store.put("plan", PLAN)], "problems": [store.put("problems", PROBLEMS)], "policy": [used]}
    given: list[tuple[str, str, dict[str, list[Ref]]]] = [
        ("rollout", "rollouts", plan),
        ("update", "checkpoints", {"rollouts": [rollouts], "scores": [scores], "policy": [used]}),
        ("warmstart", "checkpoints", {"problems": [store.put("problems", problems)]}),
    ]
    for name, table, inputs in given:
        with pytest.raises(BadInputError, match=r"device = cuda needs a GPU, and PyTorch .* sees none") as error:
            stage(store, name, table, "e", inputs=inputs, device="cuda")
        assert "auto" in error.value.hint


def test_memory_that_runs_out_says_what_to_lower(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = policy(store, tmp_path / "p")
    rollouts, _ = rolled_out(store, used)
    inputs = {"rollouts": [rollouts], "scores": [scored(store, rollouts, [1, 0, 0, 0] * 3)], "policy": [used]}
    raised: list[BaseException] = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("another")]

    def fail(*_args: Any, **_options: Any) -> None:
        raise raised.pop(0)

    monkeypatch.setattr("gradus.tasks.stages.update.work.optimise", fail)
    with pytest.raises(StageError, match="out of memory while updating with 16384 tokens at once") as error:
        stage(store, "update", "checkpoints", "a", inputs=inputs)
    assert error.value.hint == "lower update.micro_tokens"
    with pytest.raises(RuntimeError, match="another"):
        stage(store, "update", "checkpoints", "a", inputs=inputs)


def test_memory_that_runs_out_while_loading_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = policy(store, tmp_path / "p")
    rollouts, _ = rolled_out(store, used)
    scores = scored(store, rollouts, [1, 0, 0, 0] * 3)
    first, _ = stage(
        store, "update", "checkpoints", "a", inputs={"rollouts": [rollouts], "scores": [scores], "policy": [used]}
    )
    again, _ = rolled_out(store, first, "2")
    scores = scored(store, again, [1, 0, 0, 0] * 3)
    inputs = {"rollouts": [again], "scores": [scores], "policy": [first]}

    def fail(*_args: Any, **_options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for place, said in (
        ("gradus.tasks.stages.update.train_state.restore_train_state", "the optimiser"),
        ("gradus.tasks.artifacts.loading.load_policy", "the policy"),
    ):
        monkeypatch.setattr(place, fail)
        with pytest.raises(StageError, match=f"out of memory while loading {said}") as error:
            stage(store, "update", "checkpoints", "b", inputs=inputs)
        assert error.value.hint == "free memory where it computes, or set device to cpu"
