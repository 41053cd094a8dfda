"""BAPO and HAPO as weights: by hand, and the gradient of their clipped surrogates as the authors write them."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.bounds import bapo, hapo


def rows(advantage: Tensor, ratio: Tensor, entropy: Tensor | None = None, mask: Tensor | None = None) -> Rows:
    of_tokens = {"advantage": advantage, "now.logp": ratio.log() - 2, "old.logp": torch.full_like(ratio, -2.0)}
    if entropy is not None:
        of_tokens["now.entropy"] = entropy
    return Rows({"group": torch.zeros(2)}, of_tokens, torch.tensor([len(ratio), 0]), mask)


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient(step: Rows, weight: Tensor) -> list[float]:
    """The gradient of the weighted, unclipped surrogate."""
    logp = step["now.logp"].clone().requires_grad_()
    loss, _ = clip(step.adding(of_tokens={"now.logp": logp}), clip_low=1.0, clip_high=1e9)
    (weight * loss).sum().backward()
    assert logp.grad is not None
    return logp.grad.tolist()


def surrogate(step: Rows, low: Tensor, high: Tensor, factor: Tensor) -> list[float]:
    """The gradient of PPO's surrogate with a dual clip at 3 and the bounds and the factor of each token."""
    logp = step["now.logp"].clone().requires_grad_()
    advantage, ratio = step["advantage"] * factor, (logp - step["old.logp"]).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * torch.clamp(ratio, low, high))
    loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * 3.0), loss)
    loss.sum().backward()
    assert logp.grad is not None
    return logp.grad.tolist()


def test_bapo_searches_its_bounds_by_hand() -> None:
    # P = min(2.05, high) + 1, N = 3 max(0.5, low): 2.2 / 1.8 already has its share.
    step = rows(doubles(1, 1, -3), doubles(2.05, 1, 0.5))
    weight, metrics = bapo(step)
    assert (float(metrics["bapo_low_max"][0]), float(metrics["bapo_high_max"][0])) == pytest.approx((0.6, 1.2))
    assert weight.tolist() == [0, 1, 0]
    # Target 1.1 with A = -4: 2.2 / 2.4 is too little. The floor goes to its maximum, N = 3.6; then high = 3.0 makes P
    # 3.05 at most, too little too: both end at their maxima, and the first token has its gradient.
    weight, metrics = bapo(rows(doubles(1, 1, -4), doubles(2.05, 1, 0.5)), target=1.1)
    assert (float(metrics["bapo_low_max"][0]), float(metrics["bapo_high_max"][0])) == pytest.approx((0.9, 3.0))
    assert weight.tolist() == [1, 1, 0]
    # With A = -3 and target 1.25: 2.2 / 1.8 is too little, N = 2.7 at the floor 0.9 asks for P = 3.375: high + 1 is
    # 3.4 after twelve steps, and the ratio of 2.45 is above it.
    weight, metrics = bapo(rows(doubles(1, 1, -3), doubles(2.45, 1, 0.5)), target=1.25)
    assert float(metrics["bapo_low_max"][0]) == pytest.approx(0.9)
    assert float(metrics["bapo_high_max"][0]) == pytest.approx(2.4)
    assert weight.tolist() == [0, 1, 0]


def test_bapo_of_masked_one_sided_and_no_tokens() -> None:
    mask = torch.tensor([True, True, False])
    alone = bapo(rows(doubles(1, 1, -90), doubles(1.1, 1, 1), mask=mask))[1]
    assert float(alone["bapo_high_max"][0]) == pytest.approx(1.2)
    wrong, metrics = bapo(rows(doubles(-1, -1), doubles(1.0, 3.5)))
    assert (wrong.tolist(), float(metrics["bapo_low_max"][0])) == ([1, 0], pytest.approx(0.9))
    assert bapo(rows(doubles(1), doubles(1), mask=torch.tensor([False])))[0].tolist() == [1]
    assert len(bapo(rows(doubles(), doubles()))[0]) == 0


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.2, 4)), min_size=1, max_size=10))
def test_bapo_has_the_gradient_of_its_surrogate(tokens: list[tuple[float, float]]) -> None:
    step = rows(*(doubles(*(t[i] for t in tokens)) for i in range(2)))
    weight, metrics = bapo(step)
    low, high = (metrics[name].double() for name in ("bapo_low_max", "bapo_high_max"))
    # Bounds are float32 in metrics: a ratio between both is neither here nor there.
    near = torch.minimum((step_ratio(step) - low).abs(), (step_ratio(step) - high).abs()) < 1e-6
    expected = surrogate(step, low, high, torch.ones_like(low))
    found = gradient(step, weight)
    assert [f for f, n in zip(found, near, strict=True) if not n] == pytest.approx(
        [e for e, n in zip(expected, near, strict=True) if not n], abs=1e-9
    )


def step_ratio(step: Rows) -> Tensor:
    return (step["now.logp"] - step["old.logp"]).exp()


def test_hapo_widens_and_redistributes_by_hand() -> None:
    # log H = -2, -1, 0, 1, 4: the median is 0, so h = -1, -1/2, 0, 1/4, 1.
    entropy = doubles(-2, -1, 0, 1, 4).exp()
    for h, place in ((-1.0, 0), (-0.5, 1), (0.0, 2), (0.25, 3), (1.0, 4)):
        down, up = 0.2 * (1 - min(h, 0)), 0.2 * (1 + max(h, 0))
        for sign in (1.0, -1.0):
            for ratio in (0.55, 0.65, 0.75, 0.82, 0.95, 1.0, 1.05, 1.15, 1.22, 1.3, 1.5, 3.5):
                advantage = doubles(0, 0, 0, 0, 0).index_fill(0, torch.tensor([place]), sign)
                ratios = doubles(1, 1, 1, 1, 1).index_fill(0, torch.tensor([place]), ratio)
                weight = float(hapo(rows(advantage, ratios, entropy))[0][place])
                cut = ratio > 1 + up if sign > 0 else ratio < 1 - down or ratio > 3
                inside = 1 - down / 2 < ratio < 1 + up / 2
                changed = inside if h <= 0 else not inside
                assert weight == pytest.approx(0 if cut else 1 + h if changed else 1), (h, sign, ratio)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.2, 4), st.floats(0.01, 3)), min_size=1, max_size=10))
def test_hapo_has_the_gradient_of_the_surrogate_of_its_authors(tokens: list[tuple[float, ...]]) -> None:
    step = rows(*(doubles(*(t[i] for t in tokens)) for i in range(3)))
    ratio, level = step_ratio(step), step["now.entropy"].log()
    h = level - level.sort().values[round(0.5 * (len(level) - 1))]
    h = torch.where(h > 0, h / h.max(), torch.where(h < 0, h / h.min().abs(), 0.0))
    low, high = torch.full_like(h, 0.2), torch.full_like(h, 0.2)
    low[h <= 0], high[h > 0] = (low * (1 - h))[h <= 0], (high * (1 + h))[h > 0]
    neutral = (ratio > 1 - low / 2) & (ratio < 1 + high / 2)
    factor = torch.where(h > 0, torch.where(neutral, 1.0, 1 + h), torch.where(neutral, 1 + h, 1.0))
    expected = surrogate(step, 1 - low, 1 + high, factor)
    edges = torch.stack([1 - low, 1 + high, 1 - low / 2, 1 + high / 2, torch.full_like(low, 3.0)])
    clear = ((ratio - edges).abs() > 1e-6).all(0)
    found = torch.tensor(gradient(step, hapo(step)[0].double()))
    assert found[clear].tolist() == pytest.approx(torch.tensor(expected)[clear].tolist(), abs=1e-5)


def test_hapo_of_equal_masked_and_no_tokens() -> None:
    equal = hapo(rows(doubles(1, -1), doubles(1, 1), doubles(2, 2)))
    assert equal[0].tolist() == [1, 1]
    # A masked token of huge entropy moves neither the median nor the scale.
    mask: Any = torch.tensor([True, True, True, False])
    step = rows(doubles(1, 1, 1, 1), doubles(1.3, 1, 1, 1), doubles(3, 2, 1, 1e6), mask)
    assert hapo(step)[0][:3].tolist() == pytest.approx([2, 1, 0])
    assert len(hapo(rows(doubles(), doubles(), doubles()))[0]) == 0
