"""Rollouts of a truncated distribution (top-k, top-p): the trainer's side cut likewise, held against the sampler."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

import gradus.models.engines.sampling
import gradus.models.training.packed.logprobs
from gradus.components.chosen import ImportanceConfig
from gradus.models.engines.base import Request
from gradus.models.engines.hf import HfEngine
from gradus.models.engines.sampling import SamplingParams, truncated_logprobs
from gradus.models.policy import Policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.mismatch import mismatch, num_outside
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.packed.ragged import Ragged
from gradus.models.training.passes import Budget, all_logprobs
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.models.training.steps.step import Hooks
from gradus.models.training.steps.step_rows import ReferenceLogprobs
from gradus.models.training.update import StepPlan, optimise
from gradus.tasks.identity.loading import load
from tests.models.training.saved import weights_bytes


def correcting(how: str, cap: float = 2.0) -> Any:
    return load(ImportanceConfig.model_validate({"name": how, "cap": cap}))


def weights(
    old: torch.Tensor, sampler: torch.Tensor, row: torch.Tensor, mask: torch.Tensor, how: str, cap: float
) -> torch.Tensor:
    """The weights alone."""
    return load(ImportanceConfig.model_validate({"name": how, "cap": cap}))(old, sampler, row, mask)[0]


Metrics = dict[str, float]
ONE_STEP = UpdateSettings(lr=1e-3, micro_tokens=10_000, max_grad_norm=1e9)
ALL = torch.ones(3, dtype=torch.bool)


def drawing(*rows: tuple[float, float, int]) -> SamplingParams:
    """Temperature, top_p and top_k of each row."""
    temperature, top_p, top_k = zip(*rows, strict=True)
    return SamplingParams(
        torch.tensor(temperature, dtype=torch.float32)[:, None],
        torch.tensor(top_p, dtype=torch.float64)[:, None],
        torch.tensor(top_k)[:, None],
    )


@pytest.mark.parametrize(
    ("how", "probabilities", "left"),
    [
        ((1.0, 0.7, 0), [0.5, 0.25, 0.15, 0.1], [2 / 3, 1 / 3, 0, 0]),
        ((1.0, 1.0, 3), [0.1, 0.5, 0.15, 0.25], [0, 5 / 9, 1 / 6, 5 / 18]),
        # Top-k first: of what it leaves, 5/9 and 5/18, two reach 0.8; of all four, three would.
        ((1.0, 0.8, 3), [0.5, 0.25, 0.15, 0.1], [2 / 3, 1 / 3, 0, 0]),
        # Equals of the last that top-k takes stay; of equals at top-p's edge the first stays.
        ((1.0, 1.0, 2), [0.4, 0.3, 0.3], [0.4, 0.3, 0.3]),
        ((1.0, 0.6, 0), [0.4, 0.3, 0.3], [4 / 7, 3 / 7, 0]),
        # Greedy rows are recorded at temperature 1 and whole.
        ((0.0, 0.5, 1), [0.5, 0.25, 0.15, 0.1], [0.5, 0.25, 0.15, 0.1]),
    ],
)
def test_what_truncation_leaves_by_hand(
    how: tuple[float, float, int], probabilities: list[float], left: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(probabilities)
    logp = torch.tensor([probabilities] * size).log()
    rows = drawing(*[how] * size)
    for elements in (10**6, size):  # in one piece, and row by row
        monkeypatch.setattr(gradus.models.engines.sampling, "CHUNK_ELEMENTS", elements)
        found = truncated_logprobs(logp, rows, torch.arange(size))
        assert found.exp().tolist() == pytest.approx(left, abs=1e-6)
        assert torch.isneginf(found).tolist() == [p == 0 for p in left]


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12),
    st.floats(0.01, 1.0),
    st.integers(0, 14),
)
def test_what_is_left_sums_to_one_in_the_same_proportions(logits: list[float], top_p: float, top_k: int) -> None:
    logp = torch.log_softmax(torch.tensor([logits] * len(logits)), -1)
    rows = drawing(*[(1.0, top_p, top_k)] * len(logits))
    found, whole = truncated_logprobs(logp, rows, torch.arange(len(logits))), logp[0]
    assert float(found.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    kept = torch.isfinite(found)
    raised = (found - whole)[kept]
    assert raised.tolist() == pytest.approx([float(raised[0])] * len(raised), abs=1e-5)
    assert float(whole[kept].min()) >= float(whole[~kept].max()) if bool((~kept).any()) else float(raised[0]) < 1e-5


@pytest.fixture(scope="module")
def policy() -> Policy:
    made = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=0)
    with torch.no_grad():  # far from uniform, so that truncation takes a share that matters
        made.model.get_output_embeddings().weight.mul_(5)
    return made


def sampled(policy: Policy, hows: Sequence[tuple[float, float, int]], **changes: Any) -> Rollouts:
    """Two rollouts for each way of drawing, as the engine draws and records them."""
    prompts = [(9, 12, 5), (10, 11), (9, 6, 13, 5, 8)]
    asked = [
        Request(str(i), prompts[i // 2 % 3], seed=i, max_tokens=12, temperature=how[0], top_p=how[1], top_k=how[2])
        for i, how in enumerate(h for h in hows for _ in range(2))
    ]
    done = sorted(HfEngine(policy).generate(asked), key=lambda finished: finished.index)
    return replace(
        Rollouts(
            prompts=Ragged.of([request.prompt_tokens for request in asked]),
            completions=Ragged.of([finished.tokens for finished in done]),
            logprobs=torch.tensor([logprob for finished in done for logprob in finished.logprobs]),
            temperature=torch.tensor([request.temperature for request in asked]),
            advantage=torch.tensor([1.0, -0.5] * len(hows), dtype=torch.float64),
            group=torch.arange(len(asked)) // 2,
            reward=torch.tensor([1.0, 0.0] * len(hows), dtype=torch.float64),
            correct=torch.tensor([1.0, 0.0] * len(hows), dtype=torch.float64),
            drawn=drawing(*[h for h in hows for _ in range(2)]),
        ),
        **changes,
    )


HOWS = [(1.0, 0.9, 0), (0.7, 0.9, 0), (1.0, 1.0, 4), (0.7, 0.8, 5), (0.0, 0.5, 2), (0.7, 1.0, 0)]


def trained(policy: Policy, rows: Rollouts, settings: UpdateSettings) -> tuple[TrainState, list[Metrics], Logprobs]:
    """A copy of the policy after an update, the metrics of its steps, and what was looked at before the first."""
    model: PreTrainedModel = type(policy.model)(policy.model.config).eval()
    model.load_state_dict(policy.model.state_dict())
    found = TrainState.new(model, settings, seed=1)
    log: list[Metrics] = []
    seen: list[Logprobs] = []
    plan = StepPlan.of(rows, settings, np.random.default_rng(0))
    old = None if plan.on_policy else all_logprobs(policy.model, rows, Budget(settings.micro_tokens), lambda _num: None)
    hooks = Hooks(seen.append, lambda _index, metrics: log.append(metrics), lambda _num: None)
    optimise(found, rows, plan, settings, ReferenceLogprobs(old, None), hooks)
    return found, log, old or seen[0]


def gradient(found: TrainState) -> Tensor:
    """AdamW's first moment after one step is a tenth of the gradient."""
    return 10 * torch.cat([found.optimizer.state[p]["exp_avg"].flatten() for p in found.model.parameters()])


def test_the_trainers_logprobs_truncated_logp_are_those_that_the_engine_recorded(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sampled(policy, HOWS)
    recorded = rows.logprobs
    for elements in (2**26, 23 * 5):  # in one piece, and five positions at a time
        monkeypatch.setattr(gradus.models.training.packed.logprobs, "CHUNK_LOGITS", elements)
        own = all_logprobs(policy.model, rows, Budget(10_000), lambda _num: None)
        truncated_logp, whole = own.truncated_logp, own.logp
        assert torch.allclose(truncated_logp, recorded, atol=1e-4)
        # The full softmax is off by the mass that was cut, at rows 0 to 7; the others are whole.
        assert float((whole - recorded).min()) < -0.1
        cut = rows.completions.row < 8
        assert torch.equal(truncated_logp[~cut], whole[~cut])
    off = mismatch(rows, own)
    assert (off["mismatch/outside_frac"], off["mismatch/masked_frac"]) == (0.0, 0.0)
    assert off["mismatch/logp_diff_max"] < 1e-4
    assert off["mismatch/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert "mismatch/outside_frac" not in mismatch(replace(rows, drawn=None), own)


@pytest.mark.parametrize("how", ["token_truncated", "token_masked", "sequence_truncated", "sequence_masked"])
@pytest.mark.parametrize("several_steps", [False, True])
def test_a_truncated_policys_own_rollouts_weigh_one(policy: Policy, how: Any, several_steps: bool) -> None:
    rows = sampled(policy, HOWS)
    settings = replace(ONE_STEP, correction=correcting(how), minibatch_groups=2 if several_steps else 0)
    _, log, _ = trained(policy, rows, settings)
    assert len(log) == (3 if several_steps else 1)
    for metrics in log:
        assert metrics["policy/correction_mean"] == pytest.approx(1.0, abs=1e-3)
        assert metrics["policy/correction_cut_frac"] == 0
    # Held against the full softmax they would weigh less, by the mass that was cut.
    _, log, _ = trained(policy, replace(rows, drawn=None), replace(settings, minibatch_groups=0))
    assert log[0]["policy/correction_mean"] < 0.98


def with_a_token_outside(policy: Policy) -> tuple[Rollouts, int]:
    """One row of the engine's, top_k 4, its second token replaced by the least probable one; that token."""
    rows = sampled(policy, [(1.0, 1.0, 4)], advantage=torch.tensor([1.0, 0.0], dtype=torch.float64))
    prompt, tokens = rows.prompts[0].tolist(), rows.completions[0][:3].tolist()
    with torch.no_grad():
        outside = int(policy.model(torch.tensor([[*prompt, tokens[0]]])).logits[0, -1].argmin())
    tokens[1] = outside
    other = slice(int(rows.completions.offsets[1]), None)
    logprobs = torch.cat([torch.tensor([-0.5, -1.5, -1.0]), rows.logprobs[other]])
    return replace(rows, completions=Ragged.of([tokens, rows.completions[1].tolist()]), logprobs=logprobs), outside


def test_a_token_outside_weighs_nothing_and_the_others_as_by_hand(policy: Policy) -> None:
    rows, _ = with_a_token_outside(policy)
    found, log, seen = trained(policy, rows, replace(ONE_STEP, correction=correcting("token_truncated", 9.0)))
    assert num_outside(rows, seen).tolist() == [1 + int(torch.isneginf(seen.truncated_logp[2])), 0]

    prompt, tokens = rows.prompts[0].tolist(), rows.completions[0].tolist()
    policy.model.zero_grad()
    logits = policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    whole = torch.softmax(logits, -1)
    loss = torch.zeros(())
    for t, token in enumerate(tokens):
        most = torch.topk(whole[t], 4)
        if token in most.indices.tolist():
            weight = float((whole[t, token] / most.values.sum()).detach()) / math.exp(float(rows.logprobs[t]))
            loss = loss - weight * whole[t, token].log()
    (loss / (3 + len(rows.completions[1]))).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    assert float(expected.abs().max()) > 1e-3
    assert torch.allclose(gradient(found), expected, atol=1e-6)
    assert log[0]["policy/correction_cut_frac"] == pytest.approx(
        int(num_outside(rows, seen).sum()) / (3 + len(rows.completions[1]))
    )


@pytest.mark.parametrize("how", ["token_truncated", "token_masked", "sequence_truncated", "sequence_masked"])
def test_the_gradient_of_a_token_outside_is_exactly_zero(policy: Policy, how: Any) -> None:
    rows, outside = with_a_token_outside(policy)
    # Token corrections: the token alone after its first. Sequences: all three, of which one lies outside.
    if how.startswith("token"):
        alone = {
            "prompts": Ragged.of([[*rows.prompts[0], rows.completions[0][0]], rows.prompts[1].tolist()]),
            "completions": Ragged.of([[outside], rows.completions[1].tolist()]),
            "logprobs": torch.cat([torch.tensor([-1.5]), rows.logprobs[3:]]),
        }
        rows = replace(rows, **alone)
    settings = replace(ONE_STEP, correction=correcting(how, 1e6))
    found, log, _ = trained(policy, rows, settings)
    assert not bool(gradient(found).any())
    assert all(math.isfinite(value) for value in log[0].values())
    free, _, _ = trained(policy, replace(rows, drawn=None), settings)
    assert float(gradient(free).abs().max()) > 0


def test_a_weight_of_no_probability_is_zero_for_its_token_or_its_whole_completion() -> None:
    old, sampler = torch.tensor([-math.inf, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -1.0 - math.log(2)])
    row = torch.tensor([0, 0, 1])
    for how, expected in (("token_truncated", [0.0, 1.0, 2.0]), ("sequence_truncated", [0.0, 0.0, 2.0])):
        assert weights(old, sampler, row, ALL, how, cap=3.0).tolist() == pytest.approx(expected)  # pyright: ignore[reportArgumentType]
        # A gap is no token outside: it weighs nothing in its completion.
        gap = torch.tensor([False, True, True])
        assert weights(old, sampler, row, gap, how, cap=3.0).tolist()[1:] == pytest.approx([1.0, 2.0])  # pyright: ignore[reportArgumentType]


def test_tokens_outside_are_counted_apart_and_leave_the_other_metrics() -> None:
    rows = Rollouts(
        prompts=Ragged.of([[9], [9]]),
        completions=Ragged.of([[9, 10, 1], [11, 1]]),
        logprobs=torch.tensor([-1.0, -1.0, math.nan, -2.0, -1.0]),
        temperature=torch.ones(2),
        advantage=torch.zeros(2).double(),
        group=torch.zeros(2).long(),
        reward=torch.zeros(2).double(),
        correct=torch.zeros(2).double(),
        drawn=drawing((1.0, 0.9, 0), (1.0, 0.9, 0)),
    )
    values = torch.tensor([-1.0, -math.inf, -math.inf, -2.5, -1.0])
    trainer = Logprobs(torch.arange(5), values, values)
    off = mismatch(rows, trainer)
    assert num_outside(rows, trainer).tolist() == [1, 0]
    assert (off["mismatch/outside_frac"], off["mismatch/masked_frac"]) == (1 / 5, 2 / 5)
    assert off["mismatch/logp_diff_mean"] == pytest.approx(0.5 / 3)


def test_micro_batches_change_nothing_beyond_rounding_under_truncation(policy: Policy) -> None:
    settings = replace(ONE_STEP, correction=correcting("token_truncated", 3.0))
    rows = sampled(policy, HOWS)
    older = replace(rows, logprobs=rows.logprobs - 0.1 * (rows.completions.row % 3))
    one, log, _ = trained(policy, older, settings)
    for budget in (1, 40):
        many, parts, _ = trained(policy, older, replace(settings, micro_tokens=budget))
        assert torch.allclose(gradient(many), gradient(one), atol=1e-5)
        assert parts[0] == pytest.approx(log[0], rel=1e-4, abs=1e-5)


def test_rows_that_were_not_truncated_and_updates_without_correction_keep_their_bits(policy: Policy) -> None:
    whole = sampled(policy, [(1.0, 1.0, 0), (0.7, 1.0, 0), (0.0, 0.5, 2)])
    corrected = replace(ONE_STEP, correction=correcting("sequence_truncated"))
    outside, _ = with_a_token_outside(policy)
    for rows, settings in ((whole, corrected), (sampled(policy, HOWS), ONE_STEP), (outside, ONE_STEP)):
        cut, _, _ = trained(policy, rows, settings)
        free, _, _ = trained(policy, replace(rows, drawn=None), settings)
        assert weights_bytes(cut) == weights_bytes(free)
