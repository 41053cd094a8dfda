"""CAPO's mask against a quadratic model of the head's step that autograd makes, and by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.curvature import capo_curvature


def batch(
    advantage: list[float], gradient: list[float], curvature: list[float], mask: list[bool] | None = None
) -> Rows:
    columns = {"advantage": advantage, "now.head_gradient": gradient, "now.head_curvature": curvature}
    of_tokens = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
    return Rows({}, of_tokens, torch.tensor([len(advantage), 0]), None if mask is None else torch.tensor(mask))


def test_the_limits_by_hand() -> None:
    # m_kl = 0.005 A^2 C = 0.02, 0.02, 0, 0.08, 0.02; m_obj = 0.1 A^2 G - A m_kl = 0.36, 0.42, 0, 0.36, -0.019.
    rows = batch([2, -1, 0, 2, 1], [1, 4, 9, 1.3, 0.01], [1, 4, 9, 4, 4], [True] * 4 + [False])
    weight, metrics = capo_curvature(rows, step=0.1, max_kl=0.05)
    assert weight.tolist() == [1, 1, 1, 0, 0]
    assert metrics["head_kl_mean"].tolist() == pytest.approx([0.02, 0.02, 0, 0.08, 0])  # the last is masked
    assert metrics["curved_frac"].tolist() == [0, 0, 0, 1, 1]
    # With room for every shift the last one still lowers the objective; at a higher bar the first falls, too.
    assert capo_curvature(rows, step=0.1, max_kl=1.0)[0].tolist() == [1, 1, 1, 1, 0]
    assert capo_curvature(rows, step=0.1, max_kl=1.0, min_gain=0.37)[0].tolist() == [0, 1, 0, 0, 0]
    assert capo_curvature(batch([], [], []))[0].tolist() == []


@pytest.mark.parametrize("advantage", [1.5, -0.7])
def test_gain_and_shift_are_those_of_the_second_order_model_of_a_step_on_the_head(advantage: float) -> None:
    drawn = torch.Generator().manual_seed(4)
    head, hidden = (torch.randn(*size, generator=drawn, dtype=torch.float64) for size in ((5, 3), (3,)))
    token, step = 2, 0.3

    def logp(weights: Tensor) -> Tensor:
        return torch.log_softmax(weights.reshape(5, 3) @ hidden, -1)

    start = head.reshape(-1).requires_grad_()
    (gradient,) = torch.autograd.grad(logp(start)[token], start)
    hessian: Any = torch.autograd.functional.hessian(lambda w: advantage * logp(w)[token], start.detach())
    before = logp(start).detach()
    kl: Any = torch.autograd.functional.hessian(lambda w: (before.exp() * (before - logp(w))).sum(), start.detach())
    moved = step * advantage * gradient
    gain = advantage * gradient @ moved + 0.5 * moved @ hessian @ moved
    shift = 0.5 * moved @ kl @ moved
    # The columns as the trainer defines them: squared norm of the gradient, and the Fisher information along it.
    rows = batch([advantage], [float(gradient @ gradient)], [float(gradient @ kl @ gradient)])
    _, metrics = capo_curvature(rows, step=step)
    assert float(metrics["head_kl_mean"]) == pytest.approx(float(shift), rel=1e-6)
    for limit, wanted in ((float(gain) - 1e-9, 1.0), (float(gain) + 1e-9, 0.0)):
        assert capo_curvature(rows, step=step, max_kl=1e9, min_gain=limit)[0].tolist() == [wanted]
    for limit, wanted in ((float(shift) * (1 + 1e-9), 1.0), (float(shift) * (1 - 1e-9), 0.0)):
        assert capo_curvature(rows, step=step, max_kl=limit, min_gain=-1e9)[0].tolist() == [wanted]
