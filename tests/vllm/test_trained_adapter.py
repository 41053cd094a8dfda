"""An adapter that an update trained: vLLM samples the same with it as with the merged weights."""

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
Rollouts = list[tuple[list[int], list[float]]]
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


def test_rollouts_with_the_adapter_and_with_the_merged_weights_are_the_same_and_so_are_log_probs(
    engine: Do, store: Store, policies: list[Ref], trained: tuple[Ref, list[dict[str, Any]]], tmp_path: Path
) -> None:
    adapter, rows = trained
    write_checkpoint(store, tmp_path / "runs", adapter, tmp_path / "merged", merge=True)
    tokens = {name: [row[f"{name}_tokens"] for row in rows] for name in ("prompt", "completion")}

    # Each prompt goes on with what was sampled before, so that no two greedy rollouts need be the same.
    prompts = [[*row["prompt_tokens"], *row["completion_tokens"][:4]] for row in rows]

    def asked(folder: Path) -> tuple[np.ndarray[Any, Any], Rollouts]:
        """Log-probs of the tokens that were trained on, and greedy rollouts with theirs."""
        assert "error" not in engine("load", folder=str(folder))
        answer = engine("logprobs", prompts=tokens["prompt"], completions=tokens["completion"])["logprobs"]
        return np.concatenate([np.array(row) for row in answer]), greedy(engine, prompts)

    (beside, rollouts), (merged, expected) = asked(store.path(adapter)), asked(tmp_path / "merged")
    for prompt, (found, given), (other, wanted) in zip(prompts, rollouts, expected, strict=True):
        num_same = same_but_for_a_tie(engine, prompt, found, other)
        assert given[:num_same] == pytest.approx(wanted[:num_same], rel=0, abs=ROUNDING)
    base, of_base = asked(store.path(policies[0]))
    assert len(merged) == sum(map(len, tokens["completion"]))
    assert np.abs(beside - merged).max() < ROUNDING < UpdateConfig().max_logp_diff
    assert np.abs(base - merged).mean() > 100 * ROUNDING
    assert sum(a != b for (a, _), (b, _) in zip(rollouts, of_base, strict=True)) > len(rows) // 2


def greedy(engine: Do, prompts: list[list[int]]) -> Rollouts:
    """The most probable tokens after each prompt, and their log-probs."""
    wanted = {"seed": 0, "max_tokens": 24, "temperature": 0.0}
    requests = [{"rollout_id": str(i), "prompt_tokens": prompt, **wanted} for i, prompt in enumerate(prompts)]
    return [(tokens, logprobs) for tokens, logprobs, *_ in engine("generate", requests=requests)["rows"]]


def same_but_for_a_tie(engine: Do, prompt: list[int], found: list[int], other: list[int]) -> int:
    """Assert that two rollouts are the same up to where the loaded weights hold two tokens equally probable.

    Return for how many tokens they are: all, where there is no such tie.
    """
    at = next((i for i, (a, b) in enumerate(zip(found, other, strict=False)) if a != b), None)
    if at is None:
        assert found == other
        return len(found)
    tied = [[*other[:at], tokens[at]] for tokens in (found, other)]
    ours, theirs = (row[-1] for row in engine("logprobs", prompts=[prompt] * 2, completions=tied)["logprobs"])
    assert abs(ours - theirs) < ROUNDING, f"token {at} is {found[at]} and {other[at]}, {ours} and {theirs}: no tie"
    return at
