"""OPMD, AsymRE and LLDS by hand, and their gradients by finite differences."""

import math

import pytest
import torch

from gradus.models.objectives.losses.penalised import asymre, llds, opmd
from tests.models.objectives.ratios import gradient, view


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
