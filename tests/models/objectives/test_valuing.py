"""ROVER's residuals by hand, and its gradient as an update begins."""

import pytest
import torch

from gradus.models.objectives.losses.valuing import rover
from gradus.models.objectives.rows import Rows


def step(now: torch.Tensor, reference: torch.Tensor, means: torch.Tensor, advantage: torch.Tensor) -> Rows:
    columns = {
        "now.logp": now,
        "reference.logp": reference,
        "now.mean_logp": means,
        "reference.mean_logp": torch.full_like(means, -4.0),
        "advantage": advantage,
    }
    return Rows({}, columns, torch.tensor([3, 0, 1, 2]))


def test_a_tokens_value_is_the_reward_and_the_mean_value_of_the_next() -> None:
    now = torch.tensor([-1.0, -2.0, -3.0, -1.0, -0.5, -0.5]).requires_grad_()
    reference = torch.tensor([-1.5, -2.0, -2.0, -1.0, -1.5, -0.25])
    means = torch.tensor([-3.0, -3.5, -4.5, -2.0, -9.0, -3.75]).requires_grad_()
    advantage = torch.tensor([0.5, 0.5, 0.5, -1.0, 0.0, 0.0])
    loss, metrics = rover(step(now, reference, means, advantage), rho=2.0)
    # Q = 1, 0, -2 | 0 | 2, -0.5; V of the next token: 2 * 0.5, 2 * -0.5, 0 | 0 | 2 * 0.25, 0.
    residual = [1 - 1.5, 0 + 0.5, -2 - 0.5, 0 + 1, 2 - 0.5, -0.5]
    assert loss.tolist() == pytest.approx([each**2 for each in residual])
    assert metrics["value_abs"].tolist() == pytest.approx([1, 0, 2, 0, 2, 0.5])
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([2 * 2 * each for each in residual])  # Q alone has a gradient
    assert means.grad is None


def test_as_an_update_begins_it_is_reinforce() -> None:
    now = torch.linspace(-2.0, -0.5, 6).requires_grad_()
    advantage = torch.tensor([0.5, 0.5, 0.5, -1.0, 0.25, 0.25])
    rover(step(now, now.detach(), torch.full((6,), -4.0), advantage), rho=3.0)[0].sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([-6 * each for each in advantage.tolist()])
