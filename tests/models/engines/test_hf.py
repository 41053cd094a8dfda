"""The embedded engine against transformers' own generate and against an independent forward pass."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gradus.models.engines.base import Request
from gradus.models.engines.hf import HfEngine
from gradus.models.policy import Policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer

BOUND = 2e-5
"""Largest difference of log-probs between the cached and the whole forward pass, float32, nats."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=128, seed=0)


def requests(**options: Any) -> list[Request]:
    prompts = [(9, 12, 5), (9, 12, 5), (10, 11), (9, 6, 13, 5, 8), (9, 12, 5)]
    given = {"max_tokens": 20, "temperature": 1.0, "top_p": 1.0, **options}
    return [Request(str(i), prompt, seed=i, **given) for i, prompt in enumerate(prompts)]


def sampled(policy: Policy, asked: list[Request], batch_rows: int = 512) -> list[tuple[list[int], list[float]]]:
    found = {
        done.index: (done.tokens, done.logprobs) for done in HfEngine(policy, batch_rows=batch_rows).generate(asked)
    }
    assert sorted(found) == list(range(len(asked)))
    return [found[i] for i in range(len(asked))]


def test_greedy_tokens_are_those_of_transformers(policy: Policy) -> None:
    for request, (tokens, _) in zip(requests(), sampled(policy, requests(temperature=0.0)), strict=True):
        ids = torch.tensor([request.prompt_tokens])
        expected = policy.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
        assert tokens == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("top_k", [0, 4])
def test_recorded_logprobs_are_those_of_an_independent_pass(
    policy: Policy, check_logprobs: Any, temperature: float, top_p: float, top_k: int
) -> None:
    asked = requests(temperature=temperature, top_p=top_p, top_k=top_k)
    for request, (tokens, logprobs) in zip(asked, sampled(policy, asked), strict=True):
        check_logprobs(policy, request, tokens, logprobs, BOUND)


def test_a_sample_does_not_depend_on_its_neighbours(policy: Policy) -> None:
    asked = requests()
    together = sampled(policy, asked)
    assert [tokens for tokens, _ in together] == [sampled(policy, [r])[0][0] for r in asked]
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in sampled(policy, asked, batch_rows=2)]


def test_the_same_requests_give_the_same_bits(policy: Policy) -> None:
    assert sampled(policy, requests()) == sampled(policy, requests())


@pytest.mark.parametrize("batch_rows", [512, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stop_string_ends_a_row_with_the_token_that_completes_it(
    policy: Policy, temperature: float, batch_rows: int
) -> None:
    asked = requests(max_tokens=40, temperature=temperature)
    whole = sampled(policy, asked, batch_rows)
    texts = [policy.tokenizer.decode(tokens, skip_special_tokens=True) for tokens, _ in whole]
    # Of each text a piece from its middle, so that every row but the last, which has none, meets its own.
    stops = [(text[9:12], "never said") for text in texts[:-1]] + [()]
    cut = [replace(request, stop=stop) for request, stop in zip(asked, stops, strict=True)]
    found = {done.index: done for done in HfEngine(policy, batch_rows=batch_rows).generate(cut)}
    for index, ((tokens, logprobs), stop) in enumerate(zip(whole, stops, strict=True)):
        said = [policy.tokenizer.decode(tokens[:end], skip_special_tokens=True) for end in range(1, len(tokens) + 1)]
        end = next((end for end, text in enumerate(said, 1) if any(s in text for s in stop)), len(tokens))
        assert found[index].tokens == tokens[:end]
        assert found[index].logprobs == pytest.approx(logprobs[:end], abs=BOUND)
        assert not stop or (end < len(tokens) and found[index].finish_reason == "stop")


def test_frequencies_are_those_of_the_softmax(policy: Policy) -> None:
    count = 4000
    asked = [Request(str(i), (9, 12, 5), seed=i, max_tokens=1) for i in range(count)]
    tokens = [found[0] for found, _ in sampled(policy, asked)]
    with torch.no_grad():
        expected = torch.softmax(policy.model(torch.tensor([[9, 12, 5]])).logits[0, -1].double(), -1).numpy() * count
    observed = np.bincount(tokens, minlength=len(expected))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_a_row_that_reaches_its_limit_says_length(policy: Policy) -> None:
    reasons = {done.finish_reason for done in HfEngine(policy).generate(requests(max_tokens=1))}
    assert reasons <= {"length", "stop"}
    assert all(len(tokens) == 1 for tokens, _ in sampled(policy, requests(max_tokens=1)))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_where_memory_runs_out_half_as_many_go_on_and_each_is_sampled_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked = requests()
    expected = sampled(policy, asked)
    forward, calls = policy.model.forward, 0

    def narrow(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 4 and len(kwargs["input_ids"]) > 2:
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(policy.model, "forward", narrow)
    engine = HfEngine(policy)
    assert engine.reproducible
    found = {done.index: done.tokens for done in engine.generate(asked)}
    assert not engine.reproducible
    assert [found[i] for i in range(len(asked))] == [tokens for tokens, _ in expected]
    assert engine.remarks[0] == "out of memory with 5 rollouts at once: continued with 3"


def test_one_row_that_does_not_fit_and_other_errors_end_the_engine(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, expected in (
        (MemoryError(), "one rollout alone does not fit"),
        (RuntimeError("shapes do not match"), "shapes do not match"),
    ):

        def broken(*_args: Any, error: Exception = error, **_kwargs: Any) -> Any:
            raise error

        monkeypatch.setattr(policy.model, "forward", broken)
        with pytest.raises(RuntimeError, match=expected):
            list(HfEngine(policy).generate(requests()))
