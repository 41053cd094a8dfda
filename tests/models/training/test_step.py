"""What acts on a whole step: weights and advantages made anew, denominators, an early end; packs change none of it."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradus.models.objectives.advantages.discriminative import disco
from gradus.models.objectives.aggregations.means import sequence_mean, token_mean
from gradus.models.objectives.losses.linear import reinforce
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.entropy import top_entropy
from tests.models.training.saved import weights_bytes
from tests.models.training.test_update import (
    ONE_STEP,
    SETTINGS,
    gradients,
    model,
    naive_logprobs,
    rollouts,
    train_state,
    trained,
)
from tests.models.training.trial import Trial, plan_of

COUPLED = replace(
    ONE_STEP,
    loss=reinforce,
    aggregation=sequence_mean,
    step_advantage=partial(disco, tau=0.5),
    needs=frozenset(["now.logp", "old.logp"]),
)
FORKING = replace(ONE_STEP, weights=(partial(top_entropy, frac=0.4),), needs=frozenset(["now.entropy"]))


@pytest.mark.parametrize("settings", [COUPLED, FORKING], ids=["disco", "top_entropy"])
def test_packs_change_nothing_of_what_is_coupled_over_the_step(settings: Trial) -> None:
    whole = gradients(settings, rollouts())
    assert float(whole.abs().max()) > 1e-3
    for budget in (1, 9):
        assert torch.allclose(gradients(replace(settings, micro_tokens=budget), rollouts()), whole, atol=1e-6)


def test_a_coupled_step_is_that_of_the_naive_objective() -> None:
    rows, policy = rollouts(), model()
    scores = [naive_logprobs(policy, rows, row)[0].mean() for row in range(6)]
    # Two groups of a right and a wrong answer, one of right answers alone; tau log of a single exp(s / tau) is s.
    loss = -((scores[0] - scores[1]) + (scores[2] - scores[3])) / 3
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert torch.allclose(gradients(COUPLED, rows), expected, atol=1e-6)


def mean_logp(rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
    """-A_i mean_t log pi, one number a row."""
    loss = -rows.row_mean(rows["advantage"]) * rows.row_mean(rows["now.logp"])
    return loss, {"of_row": loss.detach()}


def test_a_loss_of_rows_is_that_of_their_tokens_however_they_are_packed() -> None:
    rows, policy = rollouts(), model()
    losses = [-rows["advantage"][row].float() * naive_logprobs(policy, rows, row)[0].mean() for row in range(6)]
    torch.stack(losses).mean().backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    settings = replace(ONE_STEP, loss=mean_logp, aggregation=sequence_mean)
    for budget in (1, 9, 10_000):
        assert torch.allclose(gradients(replace(settings, micro_tokens=budget), rows), expected, atol=1e-6)
    by_tokens = torch.cat([loss.detach().expand(int(n)) for loss, n in zip(losses, rows.lengths, strict=True)])
    assert trained(settings)[1][0]["policy/of_row"] == pytest.approx(float(by_tokens.mean()), rel=1e-5)


def test_only_the_tokens_of_highest_entropy_of_the_step_carry_gradient() -> None:
    rows, policy = rollouts(), model()
    by_row = [naive_logprobs(policy, rows, row) for row in range(6)]
    logp, entropy = torch.cat([logp for logp, _ in by_row]), torch.cat([entropy for _, entropy in by_row])
    threshold = np.quantile(entropy.detach().double().numpy(), 0.6)
    kept = entropy.detach() >= threshold
    advantage = rows["advantage"][rows.row].float()
    (-(logp * advantage)[kept].sum() / 16).backward()  # a ratio of 1 has the gradient of log pi
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert torch.allclose(gradients(FORKING, rows), expected, atol=1e-6)
    _, log = trained(FORKING)
    assert log[0]["policy/top_entropy_frac"] == pytest.approx(int(kept.sum()) / 16)
    assert log[0]["policy/top_entropy_threshold_max"] == pytest.approx(threshold, rel=1e-5)


def test_what_no_component_needs_is_not_computed() -> None:
    passes: list[bool] = []

    def counted(settings: Trial) -> int:
        found = train_state()
        passes.clear()
        found.model.get_decoder().register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
        trained(settings, start=found)
        return passes.count(False)

    quiet = counted(ONE_STEP)
    assert counted(FORKING) == quiet + 1


def test_groups_without_variance_leave_the_denominator_if_asked_to() -> None:
    # Rows 4 and 5 have equal rewards: 16 tokens in all, 11 without theirs.
    counted = gradients(replace(ONE_STEP, aggregation=token_mean), rollouts())
    left_out = gradients(replace(ONE_STEP, aggregation=token_mean, count_zero_std_groups=False), rollouts())
    assert torch.allclose(left_out, counted * 16 / 11, atol=1e-6)


def test_no_step_follows_one_that_moved_too_far_from_the_policy_before_the_update() -> None:
    settings = replace(SETTINGS, lr=0.05, epochs=4)
    _, free = trained(settings)
    kl = [step["policy/kl_old"] for step in free]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    first_above = next(i for i, value in enumerate(kl) if value > 0.01)
    assert 0 < first_above < len(kl) - 1
    stopped, log = trained(replace(settings, max_kl=0.01))
    assert log == free[: first_above + 1]
    assert stopped.step == first_above + 1


def test_the_kl_to_the_policy_before_the_update_is_that_of_the_ratios() -> None:
    rows = rollouts()
    settings = replace(SETTINGS, epochs=1, minibatch_groups=2, lr=0.05)
    plan = plan_of(rows, settings, 0)
    half, _ = trained(settings, stop=1)
    ratios: list[float] = []
    for row in plan[1].tolist():
        new, old = naive_logprobs(half.model, rows, row)[0], naive_logprobs(model(), rows, row)[0]
        ratios += [float(value) for value in (new - old).exp().detach()]
    expected = sum(r - 1 - math.log(r) for r in ratios) / len(ratios)
    _, log = trained(settings)
    assert log[1]["policy/kl_old"] == pytest.approx(expected, rel=1e-3)


def test_a_step_without_any_gradient_leaves_the_weights() -> None:
    def nothing(rows: Rows) -> Tensor:
        return torch.zeros(rows.num_rows, dtype=torch.float64)

    settings = replace(SETTINGS, step_advantage=nothing, needs=frozenset(["now.logp", "old.logp"]))
    found, log = trained(settings)
    assert weights_bytes(found) == weights_bytes(train_state())
    assert all(step["policy/grad_norm"] == 0 for step in log)


def test_a_loss_that_acts_without_advantage_trains_rows_that_have_none() -> None:
    def likelihood(rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        return -rows["now.logp"], {}

    rows = rollouts(advantage=torch.zeros(6, dtype=torch.float64))
    settings: Any = replace(ONE_STEP, loss=likelihood, acts_without_advantage=True)
    assert float(gradients(settings, rows).abs().max()) > 0.01
    assert plan_of(rows, replace(settings, acts_without_advantage=False), 0) == ()
