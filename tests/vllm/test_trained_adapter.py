"""An adapter that an update trained: vLLM has the same log-probs of its tokens with it and with the merged weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.inspect.exchange.checkpoint import write_checkpoint
from gradus.tasks.runtime.attempt import Job, execute
from gradus.tasks.stages.warm import Warm

Do = Callable[..., dict[str, Any]]
NUM_ROWS = 24
ROUNDING = 2e-4
"""Nats: what rounding in float32 explains at one token, far below the update's own gate on the mean."""


def made(store: Store, stage: str, output: str, inputs: dict[str, Ref], config: dict[str, Any]) -> Ref:
    job = Job(stage, str(store.root), output, {role: [str(ref)] for role, ref in inputs.items()}, config, 5)
    execute(job.to_json(), Warm(), lambda _frac, _text="": None)
    return Ref.parse(output)


@pytest.fixture(scope="module")
def trained(store: Store, policies: list[Ref]) -> tuple[Ref, list[dict[str, Any]]]:
    """An adapter after two updates, each of rollouts of the policy before it, and the last rollouts."""
    plan = pa.table({
        "problem_id": ["a", "b"], "group_id": ["a@r0h0", "b@r0h0"],
        "n": pa.array([NUM_ROWS // 2] * 2, pa.int32()), "max_tokens": pa.array([16] * 2, pa.int32()),
    })  # fmt: skip
    problems = pa.table({"problem_id": ["a", "b"], "question": ["1 + 2 =", "7 + 5 ="], "answer": ["3", "12"]})
    given = {"plan": store.put("plan", plan), "problems": store.put("problems", problems)}
    config = {"lora": {"rank": 4, "alpha": 32}, "lr": 1e-2, "epochs": 4, "warmup_steps": 0}
    policy, rows = policies[0], list[dict[str, Any]]()
    for turn in range(2):
        rollouts = made(store, "rollout", f"rollouts/{turn:032x}", {**given, "policy": policy}, {})
        rows = store.read(rollouts).to_pylist()
        rewards = [float(len(row["completion_tokens"]) % 2 == index % 2) for index, row in enumerate(rows)]
        names = {name: [row[name] for row in rows] for name in ("rollout_id", "problem_id")}
        scores = store.put("scores", pa.table({**names, "reward": rewards}))
        inputs = {"rollouts": rollouts, "scores": scores, "policy": policy}
        policy = made(store, "update", f"checkpoints/{turn + 1:032x}", inputs, config)
    return policy, rows


def test_log_probs_with_the_adapter_and_with_the_merged_weights_agree(
    engine: Do, store: Store, policies: list[Ref], trained: tuple[Ref, list[dict[str, Any]]], tmp_path: Path
) -> None:
    adapter, rows = trained
    write_checkpoint(store, tmp_path / "runs", adapter, tmp_path / "merged", merge=True)
    tokens = {name: [row[f"{name}_tokens"] for row in rows] for name in ("prompt", "completion")}

    def logprobs(folder: Path) -> np.ndarray[Any, Any]:
        assert "error" not in engine("load", folder=str(folder))
        answer = engine("logprobs", prompts=tokens["prompt"], completions=tokens["completion"])["logprobs"]
        return np.concatenate([np.array(row) for row in answer])

    beside, merged = logprobs(store.path(adapter)), logprobs(tmp_path / "merged")
    base = logprobs(store.path(policies[0]))
    assert len(merged) == sum(map(len, tokens["completion"]))
    assert np.abs(beside - merged).max() < ROUNDING < UpdateConfig().max_logp_diff
    assert np.abs(base - merged).mean() > 100 * ROUNDING
