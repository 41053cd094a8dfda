"""The update as a whole: deterministic, independent of micro-batches, resumable, learning what is rewarded."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoint import CheckpointError, learner_bytes, restore_learner, restore_weights, weights_bytes
from models.logprobs import Sequences, token_logprobs
from models.packing import micro_batches
from models.policy import new_policy
from models.tiny_tokenizer import tiny_tokenizer
from models.update import Learner, Plan, Rollouts, Settings, UpdateError, mismatch, old_logprobs, optimise
from models.warmstart import Example, completion_loss, finetune
from models.warmstart import Settings as WarmSettings

SETTINGS = Settings(
    loss="clip",
    loss_settings={"clip_low": 0.2, "clip_high": 0.28},
    aggregation="token_mean",
    kl_coef=0.0,
    entropy_coef=0.0,
    lr=1e-3,
    warmup_steps=0,
    weight_decay=0.0,
    betas=(0.9, 0.999),
    max_grad_norm=1.0,
    epochs=2,
    minibatch_groups=1,
    micro_tokens=10_000,
)


def learner() -> Learner:
    policy = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=0)
    return Learner.new(policy.model, SETTINGS)


def rollouts() -> Rollouts:
    completions = [[9, 10, 1], [11, 1], [12, 13, 14, 1], [9, 1]]
    return Rollouts(
        prompts=[[9, 12], [9, 12], [5, 6, 7], [5, 6, 7]],
        completions=completions,
        logprobs=[[-1.0] * len(c) for c in completions],
        temperature=torch.tensor([1.0, 1.0, 0.7, 0.7]),
        advantage=torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64),
        group=torch.tensor([0, 0, 1, 1]),
        max_tokens=4,
    )


def trained(settings: Settings, first: int = 0, start: Learner | None = None, stop: int = 99) -> Learner:
    found = start or learner()
    plan = Plan.of(rollouts(), settings, np.random.default_rng(0))
    plan = Plan(plan.steps[: stop + 1])
    old = old_logprobs(learner().model, rollouts(), settings.micro_tokens)
    optimise(
        found, rollouts(), plan, settings, old=old, reference=None, first=first, on_step=lambda _index, _metrics: None
    )
    return found


def weights(found: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


def test_the_same_update_gives_the_same_bits() -> None:
    assert torch.equal(weights(trained(SETTINGS)), weights(trained(SETTINGS)))


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_micro_batches_change_nothing_beyond_rounding(aggregation: str) -> None:
    whole = replace(SETTINGS, aggregation=aggregation, lr=1e-4, minibatch_groups=0, epochs=1)
    one_by_one = replace(whole, micro_tokens=1)
    assert torch.allclose(weights(trained(whole)), weights(trained(one_by_one)), atol=2e-6)
    assert not torch.allclose(weights(trained(whole)), weights(learner()), atol=2e-6)


def test_stopped_and_resumed_is_uninterrupted_bit_for_bit() -> None:
    half = trained(SETTINGS, stop=1)
    kept, state = weights_bytes(half), learner_bytes(half)
    again = learner()
    restore_weights(again, kept)
    restore_learner(again, state)
    assert again.step == 2
    assert torch.equal(weights(trained(SETTINGS, first=2, start=again)), weights(trained(SETTINGS)))


def test_what_was_rewarded_becomes_more_likely() -> None:
    before = old_logprobs(learner().model, rollouts(), 1000)
    after = old_logprobs(trained(SETTINGS).model, rollouts(), 1000)
    assert float(after[0].sum()) > float(before[0].sum())
    assert float(after[1].sum()) < float(before[1].sum())


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    broken = learner()
    with torch.no_grad():
        next(broken.model.parameters())[0, 0] = float("nan")
    with pytest.raises(UpdateError, match="step 1 has loss nan"):
        trained(SETTINGS, start=broken)


def test_a_state_that_does_not_fit_is_refused() -> None:
    state = learner_bytes(trained(SETTINGS))
    with pytest.raises(CheckpointError, match="the cursor has"):
        restore_learner(learner(), {**state, "state.json": json.dumps({"step": 1, "epoch": 2}).encode()})
    wider = new_policy(tiny_tokenizer(), width=32, layers=3, heads=2, max_positions=64, seed=0)
    with pytest.raises(CheckpointError, match="disagree on"):
        restore_learner(Learner.new(wider.model, SETTINGS), state)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_and_entropy_are_those_of_an_independent_pass(temperature: float) -> None:
    model = learner().model
    rows = rollouts()
    warmth = torch.full((4,), temperature)
    with torch.no_grad():
        logp, entropy = token_logprobs(model, Sequences(rows.prompts, rows.completions), warmth)
    at = 0
    for prompt, completion in zip(rows.prompts, rows.completions, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0].double() / temperature
        for offset, token in enumerate(completion):
            p = torch.softmax(logits[len(prompt) - 1 + offset], -1)
            assert float(logp[at]) == pytest.approx(float(p[token].log()), abs=1e-5)
            assert float(entropy[at]) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-5)
            at += 1
    assert at == len(logp)


def test_mismatch_sees_other_numbers_and_missing_ones() -> None:
    rows = rollouts()
    old = [torch.tensor(row) for row in rows.logprobs]
    assert mismatch(rows, old)["mismatch/logp_diff_max"] == 0.0
    off = replace(rows, logprobs=[[-1.5, -1.0, float("nan")], *rows.logprobs[1:]])
    found = mismatch(off, old)
    assert found["mismatch/logp_diff_max"] == pytest.approx(0.5)
    assert found["mismatch/masked_frac"] == pytest.approx(1 / 11)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
@settings(max_examples=50, deadline=None)
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget


def test_the_prompt_carries_no_loss_in_warmstart() -> None:
    model = learner().model
    found = float(completion_loss(model, [Example((9, 12), (10, 1))]).detach())
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([[9, 12, 10, 1]])).logits[0].double(), -1)
    assert found == pytest.approx(float(-(logp[1, 10] + logp[2, 1])), rel=1e-5)


def test_warmstart_learns_a_few_examples_the_same_way_each_time() -> None:
    def losses() -> list[float]:
        examples = [Example((9 + i, 5), (10 + i, 1)) for i in range(4)]
        return finetune(
            learner().model,
            examples,
            WarmSettings(120, 8, 5e-3, 2),
            np.random.default_rng(0),
            lambda _step, _loss: None,
        )

    first = losses()
    assert first[-1] < 0.1 * first[0]
    assert first == losses()
