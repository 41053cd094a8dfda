"""SAPO, CPGD and GRPO-Guard's ratio by hand and by finite differences."""

import math

import pytest
import torch

from gradus.models.objectives.losses.soft import cpgd, sapo, standardised
from tests.models.objectives.ratios import Loss, gradient, logs, view


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
