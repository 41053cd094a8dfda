"""Dual clip, SAPO, CPGD and the standardised ratio: by hand, from published tests, by finite differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.surrogates import cpgd, dual_clip, sapo, standardised
from tests.models.objectives.ratios import Loss, gradient, logs, view


def test_the_loss_is_that_of_a_published_test() -> None:
    # NeMo-RL's and SkyRL's test of dual clip: ratios 0.5, 1 and 10 under A = 1, -1, -4 with clip 0.2 and c = 3 have the
    # losses -0.5, 1 and min(40, 12) = 12.
    rows, now = view(logs([0.5, 1, 10]), [1, -1, -4])
    loss, metrics = dual_clip(rows, clip_low=0.2, clip_high=0.2, cap=3.0)
    assert loss.tolist() == pytest.approx([-0.5, 1, 12])
    assert float(loss.detach().mean()) == pytest.approx(4.1667, abs=1e-4)
    assert gradient(loss, now) == pytest.approx([-0.5, 1, 0])
    assert metrics["bounded_frac"].tolist() == [0, 0, 1]
    assert metrics["ratio_max"].tolist() == pytest.approx([0.5, 1, 10])


def test_a_floor_bounds_right_tokens_that_vanished() -> None:
    # StableReinforce: below 1e-3 a token of A > 0 keeps the loss -1e-3 A without a gradient; above it -rho A.
    rows, now = view(logs([1e-4, 2e-3, 1e-4, 2e3]), [2, 2, -2, -2])
    loss, metrics = dual_clip(rows, clip_low=0.2, clip_high=0.2, floor=1e-3, cap=1e3)
    assert loss.tolist() == pytest.approx([-2e-3, -4e-3, 1.6, 2e3])
    assert gradient(loss, now) == pytest.approx([0, -4e-3, 0, 0])
    assert metrics["bounded_frac"].tolist() == [1, 0, 0, 1]
    assert metrics["clip_frac_low"].tolist() == [0, 0, 1, 0]


ratio = st.floats(0.01, 20.0)


@given(st.lists(st.tuples(ratio, st.floats(-3, 3)), min_size=1, max_size=6))
def test_it_is_the_formula_of_dual_clip_and_clip_where_no_bound_is_met(pairs: list[tuple[float, float]]) -> None:
    rows, _ = view(logs([r for r, _ in pairs]), [a for _, a in pairs])
    found = dual_clip(rows, clip_low=0.2, clip_high=0.28, cap=3.0)[0].tolist()
    for value, (r, a) in zip(found, pairs, strict=True):
        surrogate = min(r * a, min(max(r, 0.8), 1.28) * a)
        assert value == pytest.approx(-max(surrogate, 3.0 * a) if a < 0 else -surrogate, abs=1e-12)
    far = dual_clip(rows, clip_low=0.2, clip_high=0.28, cap=math.e**11)[0]
    assert torch.equal(far, clip(rows, clip_low=0.2, clip_high=0.28)[0])


def test_sapo_is_the_published_gate() -> None:
    # verl's and TRL's form, sigmoid(tau (r - 1)) 4 / tau; at r = 1 it is 2 / tau.
    rows, now = view(logs([1, 3, 1, 3]), [1, 1, -1, -1])
    loss, metrics = sapo(rows)
    right, wrong = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-2.1))
    assert loss.tolist() == pytest.approx([-2, -4 * right, 2 / 1.05, 4 / 1.05 * wrong])
    steep = [1, 4 * right * (1 - right), 1, 4 * wrong * (1 - wrong)]
    assert metrics["gate_mean"].tolist() == pytest.approx(steep)
    assert gradient(loss, now) == pytest.approx([-1, -3 * steep[1], 1, 3 * steep[3]])


def test_cpgd_clips_the_logarithm_of_the_ratio() -> None:
    rows, now = view(logs([0.5, 1.1, 2, 0.5, 1.1, 2]), [2, 2, 2, -1, -1, -1])
    loss, metrics = cpgd(rows, clip_low=0.2, clip_high=0.28)
    half, some, two = math.log(0.5), math.log(1.1), math.log(2)
    low, high = math.log(0.8), math.log(1.28)
    assert loss.tolist() == pytest.approx([-2 * half, -2 * some, -2 * high, low, some, two])
    assert gradient(loss, now) == pytest.approx([-2, -2, 0, 0, 1, 1])
    assert metrics["clip_frac_high"].tolist() == [0, 0, 1, 0, 0, 0]
    assert metrics["clip_frac_low"].tolist() == [0, 0, 0, 1, 0, 0]


def test_a_standardised_ratio_has_mean_0_and_std_1_in_a_completion() -> None:
    # Log ratios 0.1 and 0.3 (one token does not count): mean 0.2, std 0.1, units -1 and 1; s = 0.1.
    rows, now = view([0.1, 0.3, 5.0, 0.4], [1, 1, 1, -1], [3, 1], mask=[True, True, False, True])
    loss, metrics = standardised(rows, clip_std=0.5)
    assert loss[:2].tolist() == pytest.approx([-0.1 / math.e, -0.1 * math.exp(0.5)])
    slope = gradient(loss, now, rows.mask)
    # -r A inside, 0 where the clip takes it; alone in its completion a token is at its mean, and s is std_eps.
    assert slope == pytest.approx([-1 / math.e, 0, 0, 1])
    assert metrics["clip_frac_high"].tolist()[:2] == [0, 1]
    assert metrics["ratio_std_mean"].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.01])
    scaled, again = view([1.0, 3.0], [1, 1])
    assert gradient(standardised(scaled, clip_std=0.5)[0], again) == pytest.approx(slope[:2])


@pytest.mark.parametrize("loss", [sapo, cpgd])
def test_gradients_are_those_of_finite_differences(loss: Loss) -> None:
    rows, now = view(logs([0.5, 1.1, 2, 0.5, 1.1, 2]), [2, 2, 2, -1, -1, -1])
    assert torch.autograd.gradcheck(
        lambda values: loss(rows.adding(of_tokens={"now.logp": values}))[0], (now.detach().requires_grad_(),)
    )


@pytest.mark.parametrize("loss", [sapo, cpgd, standardised])
def test_a_ratio_beyond_measure_is_finite(loss: Loss) -> None:
    rows, now = view([500.0, -500.0] * 2, [1, 1, -1, -1], [1, 1, 2], then=-600.0)
    assert all(map(math.isfinite, gradient(loss(rows)[0], now)))
