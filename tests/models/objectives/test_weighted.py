"""CISPO, DPPO, REC, TOPR, VESPO, OPMD, AsymRE and LLDS: by hand and from published tests."""

import math

import pytest
import torch
from torch import Tensor

from gradus.models.objectives.losses.surrogates import dual_clip
from gradus.models.objectives.losses.weighted import asymre, cispo, dppo, llds, opmd, rec, topr, vespo
from tests.models.objectives.ratios import Loss, gradient, logs, view


def weights(found: tuple[Tensor, dict[str, Tensor]], now: Tensor, advantages: list[float]) -> list[float]:
    """The weights of a loss, from its gradient; they must be those of its value and of its metric."""
    loss, metrics = found
    slope = gradient(loss, now)
    by_value = [-v / (a * x) for v, a, x in zip(loss.tolist(), advantages, now.tolist(), strict=True)]
    by_slope = [-g / a for g, a in zip(slope, advantages, strict=True)]
    assert by_value == pytest.approx(by_slope)
    assert metrics["weight_mean"].tolist() == pytest.approx(by_slope)
    return by_slope


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    advantages = [1.0, -1.0, 2.0, -2.0]
    rows, now = view(logs([0.1, 0.5, 3.0, 9.0]), advantages)
    assert weights(cispo(rows), now, advantages) == pytest.approx([0.1, 0.5, 3, 5])
    found = cispo(rows, floor=0.4, cap=2.0)
    assert weights(found, now, advantages) == pytest.approx([0.4, 0.5, 2, 2])
    assert found[1]["clip_frac"].tolist() == [1, 0, 1, 1]


def test_cispo_takes_the_policy_that_it_is_given_as_the_behaviour() -> None:
    rows, now = view(logs([2.0]), [1.0])
    rows = rows.adding(of_tokens={"sampler.logp": rows["old.logp"] - math.log(2)})
    assert weights(cispo(rows, behaviour="sampler"), now, [1.0]) == pytest.approx([4])
    assert weights(cispo(rows), now, [1.0]) == pytest.approx([2])


def test_the_trust_region_of_dppo_is_that_of_published_tests() -> None:
    # slime's test of Binary-TV, limits 0.2 and 0.28: +0.25 stays, -0.30, +0.40 and -0.50 are masked.
    then, now_p, advantages = [0.1, 0.4, 0.5, 0.7], [0.35, 0.1, 0.9, 0.2], [1.0, -1.0, 1.0, -1.0]
    ratios = [a / b for a, b in zip(now_p, then, strict=True)]
    rows, now = view(logs(ratios), advantages, then=logs(then))
    found = dppo(rows, limit_low=0.2, limit_high=0.28)
    assert weights(found, now, advantages) == pytest.approx([3.5, 0, 0, 0])
    assert found[1]["masked_frac"].tolist() == [0, 1, 1, 1]
    # Towards the sampler no token is masked, however far off.
    back = dppo(view(logs(ratios), [-1, 1, -1, 1], then=logs(then))[0], limit_low=0.0, limit_high=0.0)
    assert back[1]["masked_frac"].tolist() == [0, 0, 0, 0]
    assert dppo(rows, limit_high=0.3, cap=1.5)[1]["weight_mean"].tolist() == pytest.approx([1.5, 0, 0, 0])


def test_the_binary_kl_of_dppo_is_that_of_two_outcomes() -> None:
    # mu = 0.2, pi = 0.3: 0.2 log(2 / 3) + 0.8 log(8 / 7) = 0.02573. pi = mu = 1 is 0.
    rows, _ = view([math.log(1.5), 0.0], [1, 1], then=[math.log(0.2), 0.0])
    exact = 0.2 * math.log(2 / 3) + 0.8 * math.log(8 / 7)
    for limit, masked in ((exact - 1e-9, [1, 0]), (exact + 1e-9, [0, 0])):
        assert dppo(rows, divergence="kl", limit_high=limit)[1]["masked_frac"].tolist() == masked
    certain, _ = view([math.log(2)], [1], then=[math.log(0.5)])  # pi = 1: its KL is infinite
    assert dppo(certain, divergence="kl", limit_high=1e9)[1]["masked_frac"].tolist() == [1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    # Ratios 0.3, 0.7, 1, 1.1, 1.5 and 3.5, first under A = 1, then under A = -1.
    [
        ({"clip": "one_side"}, [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]),
        ({"clip": "one_side", "importance": True}, [0.3, 0.7, 1, 1.1, 0, 0, 0, 0, 1, 1.1, 1.5, 3.5]),
        ({"clip": "two_side"}, [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]),
        ({"clip": "ring"}, [1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1]),
    ],
)
def test_the_masks_of_rec(settings: dict[str, object], expected: list[float]) -> None:
    advantages = [1.0] * 6 + [-1.0] * 6
    rows, now = view(logs([0.3, 0.7, 1, 1.1, 1.5, 3.5] * 2), advantages)
    found = rec(rows, **settings)  # type: ignore[arg-type]
    assert weights(found, now, advantages) == pytest.approx(expected)
    assert found[1]["masked_frac"].tolist() == [float(value == 0) for value in expected]


def test_rec_with_importance_has_the_gradient_of_the_clip() -> None:
    rows, now = view(logs([0.3, 0.7, 0.9, 1.1, 1.5, 3.5] * 2), [1.0] * 6 + [-1.0] * 6)
    mine = gradient(rec(rows, importance=True)[0], now)
    assert mine == pytest.approx(gradient(dual_clip(rows, clip_low=0.2, clip_high=0.2, cap=4.0)[0], now))


def test_topr_fades_wrong_completions_by_their_whole_ratio() -> None:
    # Log ratios of the rows: -0.3 of two counted tokens (the third does not count), 0.5, and -2; the last has A = 0.
    rows, now = view(
        [-0.5, 0.2, 7.0, 0.5, -2.0], [-1, -1, -1, -2, 0], [3, 1, 0, 1], mask=[True, True, False, True, True]
    )
    _, metrics = topr(rows)
    assert metrics["weight_mean"].tolist() == pytest.approx([math.exp(-0.3)] * 3 + [1, 1])
    assert topr(rows, cap=2.0)[1]["weight_mean"][3].item() == pytest.approx(math.exp(0.5))
    slope = gradient(topr(rows)[0], now, rows.mask)
    assert slope == pytest.approx([math.exp(-0.3), math.exp(-0.3), 0, 2, 0])
    right, _ = view([-0.5, 0.2], [1, 1])
    assert topr(right)[1]["weight_mean"].tolist() == [1, 1]


def test_vespo_has_its_published_kernel() -> None:
    # TRL's: exp(lambda + k log w - lambda w). At w = k / lambda = 1.5 of A < 0: 1.5^3 e^-1; of A >= 0: 1.5^2 e^-1.5.
    half = math.log(1.5) / 2
    rows, _ = view([half, half, 9, half, half], [-1, -1, -1, 1, 1], [3, 2], mask=[True, True, False, True, True])
    found = vespo(rows)[1]["weight_mean"].tolist()
    assert found == pytest.approx([3.375 / math.e] * 3 + [2.25 * math.exp(-1.5)] * 2)
    far, _ = view([-40, 40], [1, -1], [1, 1])
    assert vespo(far)[1]["weight_mean"].tolist() == pytest.approx([0, 0], abs=1e-6)
    assert bool(torch.isfinite(vespo(far)[0]).all())


@pytest.mark.parametrize("loss", [cispo, dppo, rec, topr, vespo])
def test_a_ratio_beyond_measure_is_finite(loss: Loss) -> None:
    rows, now = view([500.0, -500.0] * 2, [1, 1, -1, -1], [1, 1, 1, 1], then=-600.0)
    slope = gradient(loss(rows)[0], now)
    assert all(map(math.isfinite, slope))


def test_opmd_adds_the_square_of_the_whole_ratio() -> None:
    # Row of S = 0.3 - 0.1 (the third token does not count), then S = -0.5, then none.
    rows, now = view([0.3, -0.1, 5.0, -0.5], [2, 2, 2, 0], [3, 1, 0], mask=[True, True, False, True])
    loss, metrics = opmd(rows, tau=0.4)
    assert float(loss[:2].sum().detach()) == pytest.approx(-2 * (-0.7 - 1.1) + 0.2 * 0.2**2)
    assert float(loss[3].detach()) == pytest.approx(0.2 * 0.25)
    # The sum over a row has the gradient -A + tau S for each counted token.
    assert gradient(loss, now, rows.mask) == pytest.approx([-2 + 0.4 * 0.2, -2 + 0.4 * 0.2, 0, 0.4 * -0.5])
    assert metrics["log_ratio_mean"].tolist() == pytest.approx([0.2, 0.2, 0.2, -0.5])


def test_asymre_lowers_the_baseline() -> None:
    rows, now = view([0.0, 0.5, -0.5], [1, -1, 0], [1, 1, 1])
    loss, _ = asymre(rows)
    assert loss.tolist() == pytest.approx([1.1 * 1, -0.9 * 0.5, 0.1 * 1.5])
    assert gradient(loss, now) == pytest.approx([-1.1, 0.9, -0.1])


def test_llds_charges_the_tokens_of_right_completions_that_lost_probability() -> None:
    # Falls: 0.5 - 0.2 > 0, so the first token pays 0.5; 0.1 - 0.3 < 0 pays nothing; a wrong row pays nothing; A = 0
    # pays; a fall of a token that does not count opens no gate.
    ratios = [-0.5, 0.2, -0.1, 0.3, -0.5, -0.4, -9.0, 0.1]
    rows, now = view(
        ratios, [1, 1, 1, 1, -1, 0, 1, 1], [2, 2, 1, 1, 2, 0], mask=[True, True, True, True, True, True, False, True]
    )
    loss, metrics = llds(rows)
    assert loss.tolist() == pytest.approx([0.5, 0, 0, 0, 0, 0.4, 0, 0])
    assert gradient(loss, now, rows.mask) == pytest.approx([-1, 0, 0, 0, 0, -1, 0, 0])
    assert metrics["displaced_frac"].tolist() == [1, 1, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("loss", [opmd, asymre, llds])
def test_gradients_are_those_of_finite_differences(loss: object) -> None:
    rows, now = view([-0.5, 0.2, 0.3, -0.4], [1.5, 1.5, -1, 0.5], [2, 1, 1])
    assert torch.autograd.gradcheck(
        lambda values: loss(rows.adding(of_tokens={"now.logp": values}))[0].sum(),  # type: ignore[operator]
        (now.detach().requires_grad_(),),
    )


def test_the_penalties_vanish_at_the_sampler() -> None:
    rows, now = view([0.0, 0.0], [1, -1], [1, 1])
    assert gradient(opmd(rows)[0], now) == pytest.approx([-1, 1])
    assert gradient(llds(rows)[0], now) == [0, 0]
    assert math.isclose(float(llds(rows)[0].detach().sum()), 0.0)
