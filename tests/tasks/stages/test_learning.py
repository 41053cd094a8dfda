"""Stages that compute where a device or memory is missing; the prompts of a warm start."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import new_policy
from gradus.models.templates import PromptConfig
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute
from gradus.tasks.stages.update.warmstart import examples_of

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


def policy(store: Store, folder: Path, seed: int = 0) -> Ref:
    made = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=seed)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return store.adopt(folder)


def stage(store: Store, name: str, table: str, digit: str, warm: Warm | None = None, **options: Any) -> Any:
    ref = Ref(table, digit * 32)
    inputs = {role: [str(r) for r in refs] for role, refs in options.pop("inputs").items()}
    job = Job(stage=name, lake=str(store.root), output=str(ref), inputs=inputs, config=options, seed=5)
    report = execute(vars(job), warm or Warm(), lambda _frac, _text="": None)
    return ref, report


def test_a_warm_start_sees_the_prompts_of_the_settings() -> None:
    made = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=64, seed=0)
    rows = [{"problem_id": "a", "question": "1 + 2 =", "messages": None, "solution": "1+2=3", "answer": "3"}]
    ctx: Any = SimpleNamespace(table=lambda _name, _columns: pa.Table.from_pylist(rows))
    (example,) = examples_of(ctx, made, PromptConfig(system="4 + 4", template="{question} 0\n{hint}"), "{solution}")
    assert made.tokenizer.decode(example.prompt) == "4 + 4\n\n1 + 2 = 0\n"
    (plain,) = examples_of(ctx, made, PromptConfig(), "{solution}")
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
        ("gradus.tasks.artifacts.weights.load_policy", "the policy"),
    ):
        monkeypatch.setattr(place, fail)
        with pytest.raises(StageError, match=f"out of memory while loading {said}") as error:
            stage(store, "update", "checkpoints", "b", inputs=inputs)
        assert error.value.hint == "free memory where it computes, or set device to cpu"
