"""Losses against golden numbers, finite differences and a naive loop; aggregations against micro-batching."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from gradus.models.objectives.aggregations.means import fixed_length, sequence_mean, token_mean
from gradus.models.objectives.losses import MAX_LOG_RATIO, k3_divergence
from gradus.models.objectives.losses.clipped import clip, surrogate
from gradus.models.objectives.losses.regularising.regularisers import entropy, k3
from gradus.models.objectives.rows import Rows
from gradus.tasks.config.learning import UpdateConfig

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "clip_loss.json").read_text())


def aggregations(length_tokens: int) -> dict[str, Callable[[Rows], Tensor]]:
    fixed = partial(fixed_length, length_tokens=length_tokens)
    return {"token_mean": token_mean, "sequence_mean": sequence_mean, "fixed_length": fixed}


BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}


def tokens(logp: Tensor, advantage: list[float], **columns: Tensor) -> Rows:
    """One row whose old log-probs are 0, so that exp(logp) is the ratio, unless a column of that name is given."""
    given = {name.replace("_", ".", 1): values for name, values in columns.items()}
    found = {"now.logp": logp, "old.logp": torch.zeros_like(logp.detach()), **given}
    return Rows({}, {**found, "advantage": torch.tensor(advantage, dtype=logp.dtype)}, torch.tensor([len(logp)]))


def log(values: list[float]) -> Tensor:
    return torch.tensor([math.log(v) for v in values], dtype=torch.float64)


def test_loss_gradient_and_clipped_tokens_are_the_golden_ones() -> None:
    logp = log(GOLDEN["ratio"]).requires_grad_()
    loss, metrics = clip(tokens(logp, GOLDEN["advantage"]), **BOUNDS)
    assert loss.tolist() == pytest.approx(GOLDEN["loss"], abs=1e-14)
    loss.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(GOLDEN["d_loss_d_logp"], abs=1e-14)
    assert metrics["clip_frac_low"].tolist() == GOLDEN["clip_frac_low"]
    assert metrics["clip_frac_high"].tolist() == GOLDEN["clip_frac_high"]
    assert metrics["ratio_mean"].tolist() == pytest.approx(GOLDEN["ratio"])
    assert not any(value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("by_token", [False, True])
@given(drawn=st.lists(st.tuples(st.sampled_from([0.5, 0.8, 1.0, 1.28, 2.0]), st.sampled_from([-2.0, 0.0, 1.5]))))
@settings(max_examples=40)
def test_the_surrogate_is_the_minimum_to_the_bit(by_token: bool, drawn: list[tuple[float, float]]) -> None:
    given_ratio, advantage = torch.tensor(drawn).reshape(-1, 2).T.contiguous()
    ratio, expected_ratio = (given_ratio.clone().requires_grad_() for _ in range(2))
    low, high = (torch.full_like(advantage, bound) for bound in (0.8, 1.28))
    loss, metrics = surrogate(ratio, advantage, *((low, high) if by_token else (0.8, 1.28)))
    expected = -torch.minimum(expected_ratio * advantage, torch.clamp(expected_ratio, low, high) * advantage)
    assert torch.equal(loss, expected)
    slopes = [torch.autograd.grad(found.sum(), at)[0] for found, at in ((loss, ratio), (expected, expected_ratio))]
    assert torch.equal(*slopes)
    assert torch.equal(metrics["clip_frac_low"] > 0, (given_ratio < low) & (advantage < 0))
    assert torch.equal(metrics["clip_frac_high"] > 0, (given_ratio > high) & (advantage > 0))


def test_the_kl_estimate_is_the_golden_one() -> None:
    ratio = log(GOLDEN["ratio"])
    assert k3_divergence(torch.zeros_like(ratio), ratio).tolist() == pytest.approx(
        GOLDEN["k3_of_reference_over_policy"], abs=1e-15
    )


@pytest.mark.parametrize("name", sorted(aggregations(1)))
def test_aggregations_are_the_golden_ones(name: str) -> None:
    rows = Rows({}, lengths=torch.bincount(torch.tensor(GOLDEN["row"])), mask=torch.tensor(GOLDEN["mask"]))
    found = aggregated(aggregations(10)[name], torch.tensor(GOLDEN["loss"], dtype=torch.float64), rows)
    assert found == pytest.approx(GOLDEN["fixed_length_of_10" if name == "fixed_length" else name], rel=1e-7)


def aggregated(aggregation: Callable[[Rows], Tensor], loss: Tensor, rows: Rows) -> float:
    """The loss of a step, from the losses of its tokens."""
    return float((aggregation(rows) * loss)[rows.mask].sum())


def test_the_mean_of_k3_over_samples_is_the_kl() -> None:
    # KL((0.5, 0.25, 0.25) || (0.25, 0.5, 0.25)) = 0.5 ln 2 - 0.25 ln 2 = 0.25 ln 2.
    policy, reference = log([0.5, 0.25, 0.25]), log([0.25, 0.5, 0.25])
    assert float((policy.exp() * k3_divergence(policy, reference)).sum()) == pytest.approx(
        0.25 * math.log(2), abs=1e-15
    )


@given(st.floats(-50, 0), st.floats(-50, 0))
@settings(max_examples=50)
def test_k3_is_never_negative(first: float, second: float) -> None:
    assert float(k3_divergence(torch.tensor(first).double(), torch.tensor(second).double())) >= -1e-12


def test_the_gradient_is_that_of_finite_differences() -> None:
    start = torch.tensor([0.1, -0.4, 0.05, 0.6, -0.1], dtype=torch.float64)
    reference = torch.tensor([0.3, -0.3, 0.2, 0.1, 0.0], dtype=torch.float64)

    def total(logp: Tensor) -> Tensor:
        rows = tokens(logp, [1.0, -2.0, 0.5, 3.0, -1.0], reference_logp=reference, now_entropy=logp**2)
        return (clip(rows, **BOUNDS)[0] + 0.1 * k3(rows)[0] + 0.05 * entropy(rows)[0]).sum()

    assert torch.autograd.gradcheck(total, (start.requires_grad_(),), eps=1e-6, atol=1e-8)


def test_regularisers_add_what_they_say() -> None:
    logp, reference = log([0.5, 0.5]), log([0.25, 0.5])
    rows = tokens(logp, [0.0, 0.0], reference_logp=reference, now_entropy=torch.tensor([2.0, 3.0]).double())
    loss = 0.5 * k3(rows)[0] + 0.1 * entropy(rows)[0]
    # k3 at ratio 1/2 is 1/2 + ln 2 - 1.
    assert loss.tolist() == pytest.approx([0.5 * (math.log(2) - 0.5) - 0.2, -0.3], abs=1e-12)


def test_a_ratio_beyond_measure_is_cut_and_passes_no_gradient() -> None:
    logp = torch.tensor([500.0, -500.0], requires_grad=True)
    loss, metrics = clip(tokens(logp, [-1.0, 1.0]), **BOUNDS)
    loss.sum().backward()
    assert loss[0].item() == pytest.approx(math.exp(MAX_LOG_RATIO))
    assert metrics["ratio_max"].max().item() == pytest.approx(math.exp(MAX_LOG_RATIO))
    assert logp.grad is not None
    assert logp.grad.tolist() == [0.0, 0.0]


def naive(name: str, loss: list[float], mask: list[bool], row: list[int], length: int) -> float:
    rows = {r: [v for v, m, of in zip(loss, mask, row, strict=True) if m and of == r] for r in set(row)}
    counted = [values for values in rows.values() if values]
    if not counted:
        return 0.0
    if name == "sequence_mean":
        return sum(sum(v) / len(v) for v in counted) / len(counted)
    whole = sum(map(sum, counted))
    return whole / (sum(map(len, counted)) if name == "token_mean" else len(counted) * length)


@pytest.mark.parametrize("name", sorted(aggregations(1)))
@given(data=st.data())
@settings(max_examples=40)
def test_aggregations_are_those_of_a_naive_loop(name: str, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    row = [i for i, size in enumerate(sizes) for _ in range(size)]
    loss = data.draw(st.lists(st.floats(-5, 5), min_size=len(row), max_size=len(row)))
    mask = data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)))
    rows = Rows({}, lengths=torch.tensor(sizes), mask=torch.tensor(mask))
    found = aggregated(aggregations(7)[name], torch.tensor(loss, dtype=torch.float64), rows)
    assert found == pytest.approx(naive(name, loss, mask, row, 7), rel=1e-6, abs=1e-6)


def test_fixed_length_without_its_length_is_refused() -> None:
    with pytest.raises(ValidationError, match="length_tokens"):
        UpdateConfig.model_validate({"aggregation": "fixed_length"})
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        UpdateConfig.model_validate({"aggregation": {"name": "fixed_length", "length_tokens": 0}})
