"""Losses of given texts, distillation, Bellman residuals and GAE, against numbers worked out by hand or by autograd."""

import math

import pytest
import torch
from torch import Tensor

from gradus.models.objectives.advantages.critic import gae
from gradus.models.objectives.advantages.group_relative import reward
from gradus.models.objectives.losses.bellman import tbrm
from gradus.models.objectives.losses.distillation import distil, with_rest
from gradus.models.objectives.losses.given import luffy, mixture, rl_plus, sft
from gradus.models.objectives.returns import gae_advantages
from gradus.models.objectives.rows import Rows
from gradus.models.training.steps.critic import value_loss


def batch(logp: Tensor, lengths: tuple[int, ...] = (), **columns: Tensor) -> Rows:
    """Tokens of rows, by default of one; `teacher_top` is the column teacher.top."""
    given = {name.replace("_", ".", 1) if "_" in name else name: values for name, values in columns.items()}
    size = torch.tensor(lengths or (len(logp),))
    found = {"now.logp": logp, "advantage": torch.ones(len(logp)), **given}
    return Rows({"length": size}, found, size)


def test_supervised_fine_tuning_is_the_negative_log_likelihood_whatever_the_advantage() -> None:
    logp = torch.tensor([0.5, 0.25, 0.125]).log()
    loss, _ = sft(batch(logp, advantage=torch.tensor([0.0, 1.0, -3.0])))
    assert loss.tolist() == pytest.approx([math.log(2), math.log(4), math.log(8)])


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, [0.5 / 0.6, 0.9 / 1.0]), (0.5, [0.5, 0.9 / 1.4])])
def test_luffys_shaping_saturates_with_the_probability(gamma: float, expected: list[float]) -> None:
    logp = torch.tensor([0.5, 0.9]).log().requires_grad_()
    loss, metrics = luffy(batch(logp, advantage=torch.tensor([1.0, -2.0])), gamma=gamma)
    assert loss.tolist() == pytest.approx([-expected[0], 2 * expected[1]])
    assert metrics["shaping_mean"].tolist() == pytest.approx(expected)
    loss.sum().backward()
    # d f(p) / d log p = p gamma / (p + gamma)^2.
    slopes = [p * gamma / (p + gamma) ** 2 for p in (0.5, 0.9)]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-slopes[0], 2 * slopes[1]])


def test_the_mixture_of_rl_plus_bounds_the_weight_and_unexpected_tokens_count_more() -> None:
    # pi_old = 1/2: omega = 3/4, so w = 2 pi / (5/4). For pi = 1/2 w = 0.8, for 1/4 it is 0.4.
    logp = torch.tensor([0.5, 0.25]).log().requires_grad_()
    old = torch.tensor([0.5, 0.5]).log()
    loss, metrics = rl_plus(batch(logp, advantage=torch.tensor([1.0, -2.0]), old_logp=old))
    expected = [-0.8 * math.sqrt(0.5), 0.4 * 2 * math.sqrt(0.75)]
    assert loss.tolist() == pytest.approx(expected)
    assert metrics["mixture_mean"].tolist() == pytest.approx([0.8, 0.4])
    loss.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(expected)  # d w / d log pi = w; the factor has no gradient
    sure = rl_plus(batch(torch.zeros(1), old_logp=torch.zeros(1)))[0]
    assert sure.tolist() == [0.0]


def test_the_ratio_of_a_mixture_is_to_what_its_sources_say_together() -> None:
    # mu = 0.5 * 0.5 + 0.5 = 0.75; rho = 0.6 / 0.75 = 0.8, and 0.99 / 0.75 = 1.32 above the bound 1.25.
    logp, old = torch.tensor([0.6, 0.99]).log(), torch.tensor([0.5, 0.5]).log()
    loss, metrics = mixture(batch(logp, old_logp=old), share=0.5, clip_high=0.25)
    assert loss.tolist() == pytest.approx([-0.8, -1.25])
    assert metrics["ratio_mean"].tolist() == pytest.approx([0.8, 1.32])


def test_forward_kl_to_a_teacher_over_two_tokens_and_the_rest() -> None:
    teacher, policy = torch.tensor([[0.6, 0.3]]), torch.tensor([[0.5, 0.1]])
    # 0.6 ln(0.6 / 0.5) + 0.3 ln(0.3 / 0.1) + 0.1 ln(0.1 / 0.4)
    expected = 0.6 * math.log(1.2) + 0.3 * math.log(3) + 0.1 * math.log(0.25)
    loss, metrics = distil(batch(torch.zeros(1), teacher_top=teacher.log(), now_top=policy.log()), beta=0.0)
    assert loss.tolist() == pytest.approx([expected])
    assert metrics["teacher_mass"].tolist() == pytest.approx([0.9])
    reverse = 0.5 * math.log(0.5 / 0.6) + 0.1 * math.log(1 / 3) + 0.4 * math.log(4)
    assert distil(batch(torch.zeros(1), teacher_top=teacher.log(), now_top=policy.log()), beta=1.0)[
        0
    ].tolist() == pytest.approx([reverse], rel=1e-5)


def test_the_jensen_shannon_divergence_between_is_that_of_scipy() -> None:
    from scipy.spatial.distance import jensenshannon

    teacher, policy = torch.tensor([[0.6, 0.3]]), torch.tensor([[0.5, 0.1]])
    loss, _ = distil(batch(torch.zeros(1), teacher_top=teacher.log(), now_top=policy.log()), beta=0.5)
    expected = jensenshannon([0.6, 0.3, 0.1], [0.5, 0.1, 0.4]) ** 2
    assert loss.tolist() == pytest.approx([expected], rel=1e-5)


def test_a_policy_that_equals_its_teacher_has_no_divergence_and_no_gradient() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logp = torch.log_softmax(logits, -1)
    top = logp.detach().topk(3)
    loss, _ = distil(batch(torch.zeros(4), teacher_top=top.values, now_top=logp.gather(-1, top.indices)), beta=0.0)
    loss.sum().backward()
    assert float(loss.detach().abs().max()) < 1e-6
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) < 1e-6


def test_the_rest_of_a_full_vocabulary_stays_finite() -> None:
    assert bool(torch.isfinite(with_rest(torch.tensor([[0.75, 0.25]]).log())).all())


def test_the_bellman_residual_is_that_of_the_whole_trajectory() -> None:
    logp = torch.tensor([-0.5, -1.0, -0.25])
    found = batch(
        logp,
        lengths=(2, 0, 0, 1),
        reference_logp=torch.tensor([-0.75, -0.5, -0.25]),
        now_logsumexp=torch.tensor([2.0, 9.0, 1.0]),
        advantage=torch.tensor([1.0, 1.0, 0.0]),
    )
    loss, metrics = tbrm(found, beta=0.5)
    # Row 0: 2 + (0.25 - 0.5) - 1 / 0.5 = -0.25; row 3: 1 + 0 - 0 = 1.
    assert metrics["bellman_residual"].tolist() == pytest.approx([-0.25, -0.25, 1.0])
    assert loss.tolist() == pytest.approx([0.0625, 0.0625, 1.0])


def step(rewards: list[float], lengths: list[int], values: list[float], mask: list[bool] | None = None) -> Rows:
    of_rows = {"reward": torch.tensor(rewards, dtype=torch.float64)}
    counted = None if mask is None else torch.tensor(mask)
    return Rows(of_rows, {"critic.value": torch.tensor(values)}, torch.tensor(lengths), counted)


def naive_gae(reward_: float, values: list[float], gamma: float, lam: float) -> list[float]:
    """The sum of the paper's equation 16, term by term."""
    steps = len(values)
    rewards = [0.0] * (steps - 1) + [reward_]
    delta = [rewards[t] + gamma * (values[t + 1] if t + 1 < steps else 0.0) - values[t] for t in range(steps)]
    return [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, steps)) for t in range(steps)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_gae_is_the_sum_of_its_paper(gamma: float, lam: float) -> None:
    values = [0.5, 0.25, 0.75, 0.1, -0.2]
    found = gae_advantages(step([1.0, -1.0], [3, 2], values), gamma=gamma, lam=lam)
    expected = [*naive_gae(1.0, values[:3], gamma, lam), *naive_gae(-1.0, values[3:], gamma, lam)]
    assert found.tolist() == pytest.approx(expected)


def test_tokens_that_do_not_count_are_skipped_by_gae() -> None:
    mask = [True, False, True, True, False]
    found = gae_advantages(step([1.0, -1.0], [3, 2], [0.5, 9.0, 0.75, 0.1, 9.0], mask), gamma=0.9, lam=0.8)
    first, second = naive_gae(1.0, [0.5, 0.75], 0.9, 0.8), naive_gae(-1.0, [0.1], 0.9, 0.8)
    assert found.tolist() == pytest.approx([first[0], 0.0, first[1], second[0], 0.0])


def test_a_whitened_advantage_has_mean_0_and_std_1_and_keeps_the_order() -> None:
    view = step([1.0, -1.0], [3, 2], [0.5, 0.25, 0.75, 0.1, -0.2])
    plain, white = gae(view, whiten=False), gae(view)
    assert plain.tolist() == pytest.approx([0.5, 0.75, 0.25, -1.1, -0.8])
    assert float(white.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(white.std()) == pytest.approx(1.0, rel=1e-6)
    assert white.argsort().tolist() == plain.argsort().tolist()


def test_the_plain_reward_has_no_baseline() -> None:
    rewards = torch.tensor([1.0, 0.25, torch.nan], dtype=torch.float64)
    assert reward(Rows({"reward": rewards})).tolist() == [1.0, 0.25, 0.0]


def test_a_value_beyond_the_clip_is_pulled_by_its_larger_error() -> None:
    values = torch.tensor([0.0, 1.0, -1.0]).requires_grad_()
    loss = value_loss(values, torch.zeros(3), torch.ones(3), clip=0.5)
    # (0 - 1)^2 / 2; clipped to 0.5: max(0, 0.25) / 2, without gradient; clipped to -0.5: max(4, 2.25) / 2.
    assert loss.tolist() == pytest.approx([0.5, 0.125, 2.0])
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-1.0, 0.0, -2.0])


def test_a_divergence_between_sharp_distributions_stays_finite() -> None:
    teacher = torch.tensor([[-1e-7, -40.0, -110.0]])
    policy = torch.tensor([[-1e-7, -50.0, -130.0]], requires_grad=True)
    loss, _ = distil(batch(torch.zeros(1), teacher_top=teacher, now_top=policy), beta=0.5)
    loss.sum().backward()
    assert policy.grad is not None
    assert bool(torch.isfinite(loss).all())
    assert bool(torch.isfinite(policy.grad).all())
