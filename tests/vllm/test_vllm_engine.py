"""vLLM itself: the tokens of transformers, the log-probs of the distribution sampled from, weights that are proved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.data.lake.store import Ref, Store
from gradus.models.engines.base import Request
from gradus.models.engines.hf import HfEngine
from gradus.models.policy import Policy, load_policy
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.inspect.exchange.checkpoint import write_checkpoint
from gradus.tasks.runtime.calls import Job, execute

Do = Callable[..., dict[str, Any]]
BOUND = 2e-4
"""Largest difference of log-probs between vLLM and a whole forward pass, both float32, nats."""
Rollouts = list[tuple[list[int], list[float]]]
NUM_ROWS = 24
PROMPTS = [(9, 12, 5), (9, 12, 5), (10, 11), (9, 6, 13, 5, 8), (9, 12, 5)] * 3


def asked(**options: Any) -> list[dict[str, Any]]:
    given = {"max_tokens": 24, "temperature": 1.0, **options}
    return [{"rollout_id": str(i), "prompt_tokens": p, "seed": i, **given} for i, p in enumerate(PROMPTS)]


def requests(**options: Any) -> list[Request]:
    return [Request(**row) for row in asked(**options)]


@pytest.fixture
def loaded(engine: Do, store: Store, policies: list[Ref]) -> Policy:
    """The first policy, in vLLM and here."""
    folder = store.path(policies[0])
    assert "error" not in engine("load", folder=str(folder))
    return load_policy(folder)


def test_greedy_tokens_and_the_log_probs_of_given_tokens_are_those_of_transformers(engine: Do, loaded: Policy) -> None:
    answer = engine("generate", requests=asked(temperature=0.0))
    assert answer["name"].startswith("vllm 0.32.0")
    expected = {f.index: list(f.tokens) for f in HfEngine(loaded).generate(requests(temperature=0.0))}
    # Ties between the two most probable tokens could differ; in float32 none does here.
    assert [row[0] for row in answer["rows"]] == [expected[i] for i in range(len(PROMPTS))]
    completions = [row[0] for row in answer["rows"]]
    given = engine("logprobs", prompts=PROMPTS, completions=completions)["logprobs"]
    for ours, theirs in zip(map(HfEngine(loaded).logprobs, PROMPTS, completions), given, strict=True):
        assert ours == pytest.approx(theirs, abs=BOUND)
    # A piece of what the first said, and a phrase of one token that goes on behind the stop string.
    said = loaded.tokenizer.decode(completions[0], skip_special_tokens=True)
    stop = (said[5:8], "###")
    answer = engine("generate", requests=asked(temperature=0.0, stop=stop))
    ended = {f.index: f for f in HfEngine(loaded).generate(requests(temperature=0.0, stop=stop))}
    assert len(ended[0].tokens) < len(completions[0])
    for index, (tokens, logprobs, reason, _) in enumerate(answer["rows"]):
        assert (tokens, reason) == (list(ended[index].tokens), ended[index].finish_reason)
        assert logprobs == pytest.approx(ended[index].logprobs, abs=BOUND)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 0), (0.9, 6)])
def test_recorded_logprobs_are_of_what_was_sampled_from(
    engine: Do, loaded: Policy, check_logprobs: Any, temperature: float, top_p: float, top_k: int
) -> None:
    options = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    answer = engine("generate", requests=asked(**options))
    for request, (tokens, logprobs, reason, _) in zip(requests(**options), answer["rows"], strict=True):
        assert reason in ("stop", "length")
        check_logprobs(loaded, request, tokens, logprobs, BOUND)
    assert answer["told"] == sorted(answer["told"])
    assert answer["told"][-1] == sum(len(row[0]) for row in answer["rows"])


def test_frequencies_are_those_of_the_softmax(engine: Do, loaded: Policy) -> None:
    count = 2000
    rows = [{"rollout_id": str(i), "prompt_tokens": (9, 12, 5), "seed": i, "max_tokens": 1} for i in range(count)]
    tokens = [row[0][0] for row in engine("generate", requests=rows)["rows"]]
    with torch.no_grad():
        expected = torch.softmax(loaded.model(torch.tensor([[9, 12, 5]])).logits[0, -1], -1).numpy()
    found = np.bincount(tokens, minlength=len(expected)) / count
    # Five standard errors of a frequency.
    assert (np.abs(found - expected) < 5 * np.sqrt(expected / count) + 1e-3).all()


def test_a_request_that_does_not_fit_fails_alone_and_one_given_up_leaves_nothing_behind(
    engine: Do, loaded: Policy
) -> None:
    del loaded
    rows = asked()
    rows[1] = {**rows[1], "prompt_tokens": (9,) * 500}
    answer = engine("generate", requests=rows)["rows"]
    assert [i for i, row in enumerate(answer) if row[2] == "error"] == [1]
    assert "128" in answer[1][3]
    engine("give_up")
    assert len(engine("generate", requests=asked())["rows"]) == len(PROMPTS)


def test_a_dead_engine_core_is_an_error_and_the_next_load_starts_another(
    engine: Do, loaded: Policy, store: Store, adapters: list[Ref]
) -> None:
    del loaded
    assert engine("kill_core")["killed"]
    assert "engine core ended" in engine("generate", requests=asked())["error"]
    # The largest rank first: the engine is started for it, and the next test's adapters change in place.
    assert "error" not in engine("load", folder=str(store.path(adapters[1])))
    assert len(engine("generate", requests=asked())["rows"]) == len(PROMPTS)


def test_weights_that_arrive_in_part_are_never_sampled_from(engine: Do, store: Store, policies: list[Ref]) -> None:
    found = engine("load_in_pieces", folder=str(store.path(policies[0])))
    assert found["told"] == ["vLLM did not take new weights: Call to reload_weights failed"] * 2
    assert not found["holds"]


def test_adapters_change_beside_a_base_that_stays(
    engine: Do, store: Store, policies: list[Ref], adapters: list[Ref], check_logprobs: Any
) -> None:
    base, *folders = (str(store.path(ref)) for ref in (policies[0], *adapters))
    cores: list[int] = []
    for folder in (folders[1], folders[0], base, folders[2], folders[1], folders[0]):
        assert "error" not in engine("load", folder=folder)
        cores += engine("cores")["cores"]
        policy = load_policy(Path(folder))
        expected = {f.index: list(f.tokens) for f in HfEngine(policy).generate(requests(temperature=0.0))}
        completions = [expected[i] for i in range(len(PROMPTS))]
        answer = engine("generate", requests=asked(temperature=0.0))
        assert [row[0] for row in answer["rows"]] == completions
        given = engine("logprobs", prompts=PROMPTS[:3], completions=completions[:3])["logprobs"]
        for ours, theirs in zip(map(HfEngine(policy).logprobs, PROMPTS[:3], completions[:3]), given, strict=True):
            assert ours == pytest.approx(theirs, abs=BOUND)
        sampled = engine("generate", requests=asked(temperature=0.7))["rows"]
        for request, (tokens, logprobs, _, _) in zip(requests(temperature=0.7), sampled, strict=True):
            check_logprobs(policy, request, tokens, logprobs, BOUND)
    assert len(cores) == 6
    assert len(set(cores)) == 1


def made(store: Store, stage: str, output: str, inputs: dict[str, Ref], config: dict[str, Any]) -> Ref:
    job = Job(stage, str(store.root), output, {role: [str(ref)] for role, ref in inputs.items()}, config, 5)
    execute(vars(job), Warm(), lambda _frac, _text="": None)
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
    engine: Do,
    store: Store,
    policies: list[Ref],
    adapters: list[Ref],
    trained: tuple[Ref, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """Before the merged weights, for which the engine starts anew, its adapters' last load is one in vain."""
    adapter, rows = trained
    write_checkpoint(store, tmp_path / "runs", adapter, tmp_path / "merged", merge=True)
    tokens = {name: [row[f"{name}_tokens"] for row in rows] for name in ("prompt", "completion")}

    # Each prompt goes on with what was sampled before, so that no two greedy rollouts need be the same.
    prompts = [[*row["prompt_tokens"], *row["completion_tokens"][:4]] for row in rows]

    def found_with(folder: Path) -> tuple[np.ndarray[Any, Any], Rollouts]:
        """Log-probs of the tokens that were trained on, and greedy rollouts with theirs."""
        assert "error" not in engine("load", folder=str(folder))
        answer = engine("logprobs", prompts=tokens["prompt"], completions=tokens["completion"])["logprobs"]
        return np.concatenate([np.array(row) for row in answer]), greedy(engine, prompts)

    beside, rollouts = found_with(store.path(adapter))
    assert_a_stale_adapter_is_caught(engine, str(store.path(adapters[2])), str(store.path(adapter)))
    merged, expected = found_with(tmp_path / "merged")
    for prompt, (found, given), (other, wanted) in zip(prompts, rollouts, expected, strict=True):
        num_same = same_but_for_a_tie(engine, prompt, found, other)
        assert given[:num_same] == pytest.approx(wanted[:num_same], rel=0, abs=BOUND)
    base, of_base = found_with(store.path(policies[0]))
    assert len(merged) == sum(map(len, tokens["completion"]))
    assert np.abs(beside - merged).max() < BOUND < UpdateConfig().max_logp_diff
    assert np.abs(base - merged).mean() > 100 * BOUND
    assert sum(a != b for (a, _), (b, _) in zip(rollouts, of_base, strict=True)) > len(rows) // 2


def assert_a_stale_adapter_is_caught(engine: Do, folder: str, loaded: str) -> None:
    stale = engine("load_under_the_number_of", folder=folder, other=loaded)
    assert "vLLM does not hold the policy's weights: 0 of 12 matrices are those of" in stale["error"]
    assert "no policy is loaded" in engine("generate", requests=asked())["error"]


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
    assert abs(ours - theirs) < BOUND, f"token {at} is {found[at]} and {other[at]}, {ours} and {theirs}: no tie"
    return at


def test_new_weights_are_taken_in_place_and_stale_ones_are_caught(
    engine: Do, loaded: Policy, store: Store, policies: list[Ref]
) -> None:
    del loaded
    folder = store.path(policies[1])
    pid = engine("load", folder=str(folder))["pid"]
    answer = engine("generate", requests=asked(temperature=0.0))
    expected = {f.index: list(f.tokens) for f in HfEngine(load_policy(folder)).generate(requests(temperature=0.0))}
    assert [row[0] for row in answer["rows"]] == [expected[i] for i in range(len(PROMPTS))]
    stale = engine("load_in_vain", folder=str(store.path(policies[0])))
    assert "vLLM does not hold the policy's weights" in stale["error"]
    assert stale["pid"] == pid
    assert "no policy is loaded" in engine("generate", requests=asked())["error"]


def test_sleep_and_wake_come_in_the_order_that_vllm_asks_for(
    engine: Do, store: Store, policies: list[Ref], adapters: list[Ref]
) -> None:
    """A GPU's sleep mode, against a stand-in for vLLM with two copies of the model: no GPU was there to try it on."""
    folders = [str(store.path(ref)) for ref in policies]

    def twice(*calls: str) -> list[str]:
        return [f"{copy} {call}" for call in calls for copy in (0, 1)]

    used = ["proved", *twice("add_request"), *twice("sleep 2")]
    new = [f"reload_weights {policies[1].digest}", "gradus_repack", "wake_up ['kv_cache']", "reset_prefix_cache"]
    found = engine("sleeps", folders=[folders[0], folders[1]], max_rank=0)
    assert found["calls"] == [*used, *twice("wake_up ['weights']", *new), *used, "no policy is loaded"]
    assert found["remarks"] == []
    # The same weights are taken anew: at level 2 nothing of them is left.
    again = engine("sleeps", folders=[folders[0], folders[0]], max_rank=0)["calls"]
    assert sum("reload_weights" in call for call in again) == 2
    # Below adapters the base stays in the machine's memory.
    folders = [str(store.path(ref)) for ref in adapters]
    used = [*twice("add_lora"), "proved", *twice("add_request"), *twice("sleep 1")]
    found = engine("sleeps", folders=folders[:2], max_rank=8)["calls"]
    assert found == [*used, *twice("wake_up None", "reset_prefix_cache"), *used, "no policy is loaded"]
