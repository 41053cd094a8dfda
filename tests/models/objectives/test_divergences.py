"""KL terms against exact divergences of a small vocabulary: numbers, and whose gradient the mean gradient is."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradus.models.objectives.losses import MAX_LOG_RATIO
from gradus.models.objectives.losses.regularising.divergences import forward_kl, kl, weighed_kl
from gradus.models.objectives.losses.regularising.regularisers import k3
from gradus.models.objectives.rows import Rows

LOGITS = torch.tensor([0.3, -1.0, 0.7, 0.1], dtype=torch.float64)
OLD = torch.log_softmax(torch.tensor([0.1, -0.5, 0.2, 0.0], dtype=torch.float64), -1)
REFERENCE = torch.log_softmax(torch.tensor([-0.4, 0.6, 0.2, 0.9], dtype=torch.float64), -1)
Divergence = Callable[[Tensor], Tensor]


def reverse(logp: Tensor) -> Tensor:
    return (logp.exp() * (logp - REFERENCE)).sum()


def forward(logp: Tensor) -> Tensor:
    return (REFERENCE.exp() * (REFERENCE - logp)).sum()


def second_moment(logp: Tensor) -> Tensor:
    return 0.5 * (logp.exp() * (logp - REFERENCE) ** 2).sum()


def nothing(logp: Tensor) -> Tensor:
    return 0.0 * logp.sum()


def gradient(of: Divergence) -> tuple[float, list[float]]:
    """The value and the gradient in the logits."""
    logits = LOGITS.clone().requires_grad_()
    value = of(torch.log_softmax(logits, -1))
    value.backward()
    assert logits.grad is not None
    return value.item(), logits.grad.tolist()


def vocabulary(logp: Tensor, old: Tensor, reward: list[float] | None = None) -> Rows:
    """Each token of the vocabulary once, as a row of its own."""
    rewards = torch.tensor(reward or [0.0] * 4, dtype=torch.float64)
    of_tokens = {"now.logp": logp, "old.logp": old, "reference.logp": REFERENCE}
    return Rows({"reward": rewards}, of_tokens, torch.ones(4, dtype=torch.int64))


def mean(term: Any, old: Tensor | None, **settings: Any) -> Divergence:
    """The mean loss over samples of the policy itself, or of an older one."""

    def loss(logp: Tensor) -> Tensor:
        sampler = logp.detach() if old is None else old
        return (sampler.exp() * term(vocabulary(logp, sampler), **settings)[0]).sum()

    return loss


@pytest.mark.parametrize(
    ("name", "value_of", "gradient_of"),
    [("k1", reverse, nothing), ("k2", second_moment, reverse), ("k3", reverse, forward)],
)
def test_the_mean_of_an_estimate_and_of_its_gradient_are_exact_divergences(
    name: Any, value_of: Divergence, gradient_of: Divergence
) -> None:
    value, found = gradient(mean(kl, None, value=name, gradient=name))
    assert value == pytest.approx(gradient(value_of)[0], abs=1e-12)
    assert found == pytest.approx(gradient(gradient_of)[1], abs=1e-12)


@pytest.mark.parametrize("name", ["k1", "k3"])
@pytest.mark.parametrize("old", [OLD, None], ids=["older", "own"])
def test_number_and_gradient_of_a_weighed_estimate_are_those_of_the_reverse_kl(name: Any, old: Tensor | None) -> None:
    value, found = gradient(mean(weighed_kl, old, estimator=name))
    expected = gradient(reverse)
    assert value == pytest.approx(expected[0], abs=1e-12)
    assert found == pytest.approx(expected[1], abs=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("other", ["k1", "k2", "k3"])
def test_the_value_is_that_of_one_estimate_and_the_gradient_that_of_the_other(name: Any, other: Any) -> None:
    found = gradient(mean(kl, None, value=name, gradient=other))
    assert found[0] == pytest.approx(gradient(mean(kl, None, value=name, gradient=name))[0], abs=1e-14)
    assert found[1] == pytest.approx(gradient(mean(kl, None, value=other, gradient=other))[1], abs=1e-14)


def test_losses_and_gradients_of_a_token_by_hand() -> None:
    # pi = 1/2, pi_ref = 1/4, pi_old = 1/4: d = ln 2, rho = 2; k3 = 1/2 - 1 + ln 2, its derivative 1 - 1/2, k2's ln 2.
    def token(term: Any, **settings: Any) -> list[float]:
        logp = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
        quarter = torch.tensor([math.log(0.25)], dtype=torch.float64)
        rows = Rows({}, {"now.logp": logp, "old.logp": quarter, "reference.logp": quarter}, torch.tensor([1]))
        loss, _ = term(rows, **settings)
        loss.sum().backward()
        assert logp.grad is not None
        return [loss.item(), logp.grad.item()]

    ln2 = math.log(2)
    assert token(kl) == pytest.approx([ln2 - 0.5, ln2])
    assert token(kl, gradient="k3") == pytest.approx([ln2 - 0.5, 0.5])
    assert token(kl, value="k1", gradient="k1") == pytest.approx([ln2, 1.0])
    assert token(weighed_kl) == pytest.approx([2 * (ln2 - 0.5), 2 * ln2])
    assert token(weighed_kl, estimator="k1") == pytest.approx([2 * ln2, 2 * (ln2 + 1)])


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1, max_size=6))
def test_k3_alone_is_the_regulariser_k3_to_the_bit(pairs: list[tuple[float, float]]) -> None:
    now, reference = torch.tensor(pairs, dtype=torch.float64).T
    rows = Rows({}, {"now.logp": now, "old.logp": now, "reference.logp": reference}, torch.tensor([len(pairs)]))
    assert torch.equal(kl(rows, gradient="k3")[0], k3(rows)[0])


def test_a_reference_far_away_stays_finite_and_k2_still_pulls() -> None:
    logp = torch.tensor([-1.0], requires_grad=True)
    far = Rows({}, {"now.logp": logp, "old.logp": logp, "reference.logp": torch.tensor([99.0])}, torch.tensor([1]))
    loss, _ = kl(far)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.exp(MAX_LOG_RATIO) - MAX_LOG_RATIO - 1, rel=1e-5)
    assert logp.grad is not None
    assert logp.grad.item() == -100.0


@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_forward_kl_is_that_of_the_reference_reweighed_by_the_reward(eta: float) -> None:
    # p = pi_ref exp(eta R), not normalised: the gradient is that of sum_v p(v) (log pi_ref - log pi)(v).
    reward = [0.0, 1.0, 1.0, float("nan")]
    raised = REFERENCE.exp() * torch.tensor([1.0, math.exp(eta), math.exp(eta), 1.0], dtype=torch.float64)
    expected = gradient(lambda logp: (raised * (REFERENCE - logp)).sum())

    def sampled(logp: Tensor) -> Tensor:
        return (OLD.exp() * forward_kl(vocabulary(logp, OLD, reward), eta=eta)[0]).sum()

    value, found = gradient(sampled)
    assert value == pytest.approx(expected[0], abs=1e-12)
    assert found == pytest.approx(expected[1], abs=1e-12)
    if not eta:
        assert found == pytest.approx(gradient(forward)[1], abs=1e-12)


def test_rows_without_tokens_and_far_references_of_forward_kl() -> None:
    of_tokens = {"now.logp": torch.zeros(1), "old.logp": torch.tensor([-50.0]), "reference.logp": torch.zeros(1)}
    rows = Rows({"reward": torch.tensor([1.0, 0.0], dtype=torch.float64)}, of_tokens, torch.tensor([0, 1]))
    loss, metrics = forward_kl(rows)
    assert loss.tolist() == [0.0]
    assert metrics["cover_weight"].item() == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)
