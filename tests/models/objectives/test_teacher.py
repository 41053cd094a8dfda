"""Distillation at sampled tokens, and STAR's penalty by hand; the reverse KL by enumeration."""

import math
from typing import Any

import pytest
import torch

from gradus.models.objectives.losses.teacher import self_kl, star, teacher_kl
from gradus.models.objectives.rows import Rows


def batch(lengths: list[int], **columns: torch.Tensor) -> Rows:
    return Rows({}, {name.replace("_", ".", 1): values for name, values in columns.items()}, torch.tensor(lengths))


@pytest.mark.parametrize(
    ("estimate", "expected"),
    # d = ln(pi_T / pi) = ln 2, -ln 4, 0.
    [("k2", [math.log(2) ** 2 / 2, math.log(4) ** 2 / 2, 0]), ("k3", [2 - math.log(2) - 1, 0.25 + math.log(4) - 1, 0])],
)
def test_the_pull_to_a_teacher_by_hand(estimate: Any, expected: list[float]) -> None:
    rows = batch(
        [2, 0, 1], now_logp=torch.tensor([0.25, 0.8, 0.5]).log(), teacher_logp=torch.tensor([0.5, 0.2, 0.5]).log()
    )
    loss, metrics = teacher_kl(rows, estimate=estimate)
    assert loss.tolist() == pytest.approx(expected)
    assert metrics["teacher_gap"].tolist() == pytest.approx([-math.log(2), math.log(4), 0])


def test_in_expectation_the_gradient_is_that_of_the_reverse_kl() -> None:
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=drawn, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(5, generator=drawn, dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((logp.exp() * (logp - teacher)).sum(), logits, retain_graph=True)
    rows = batch([1] * 5, now_logp=logp, teacher_logp=teacher)  # every token that can be sampled, once
    (found,) = torch.autograd.grad((logp.exp().detach() * teacher_kl(rows)[0]).sum(), logits)
    assert found.tolist() == pytest.approx(expected.tolist())


def test_the_pull_is_bounded_where_a_teacher_rules_a_token_out() -> None:
    now = torch.tensor([-1.0, -1.0, -1.0]).requires_grad_()
    rows = batch([3], now_logp=now, teacher_logp=torch.tensor([-1.5, -90.0, -0.25]))
    loss, _ = teacher_kl(rows, max_nats=4.0)
    # 0.5^2 / 2; 4 * 89 - 4^2 / 2; 0.75^2 / 2.
    assert loss.tolist() == pytest.approx([0.125, 348.0, 0.28125])
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([0.5, 4.0, -0.75])


def test_star_adds_the_mass_that_its_teacher_does_not_name() -> None:
    policy = torch.tensor([[0.5, 0.1], [0.6, 0.3]]).log().requires_grad_()
    loss, metrics = star(
        batch([2], teacher_top=torch.tensor([[0.6, 0.3], [0.6, 0.3]]).log(), now_top=policy), tail=10.0
    )
    # 0.6 ln(0.6 / 0.5) + 0.3 ln(0.3 / 0.1) + 10 * 0.4; equal at the K: the tail alone.
    assert loss.tolist() == pytest.approx([0.6 * math.log(1.2) + 0.3 * math.log(3) + 4.0, 1.0], rel=1e-5)
    assert metrics["tail_mass"].tolist() == pytest.approx([0.4, 0.1])
    loss.sum().backward()
    assert policy.grad is not None
    # d / d log p(v) = -p_T(v) - 10 p(v).
    assert policy.grad.tolist()[0] == pytest.approx([-0.6 - 5.0, -0.3 - 1.0])


def test_without_its_context_a_policy_teaches_itself_nothing() -> None:
    shown = torch.tensor([-0.5, -30.0, math.nan], dtype=torch.float64)
    now = torch.tensor([-2.0, -1.0, -1.0]).requires_grad_()
    loss, metrics = self_kl(batch([2, 0, 1], now_logp=now, privileged_logp=shown))
    assert loss.tolist() == pytest.approx([1.125, 240.0, 0.0])  # 10 * 29 - 10^2 / 2
    assert metrics["self_gap"].tolist() == [-1.5, 29.0, 0.0]
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == [-1.5, 10.0, 0.0]
