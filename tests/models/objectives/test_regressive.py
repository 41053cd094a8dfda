"""REBEL, CoPG, Reg-GRPO and FlowRL by hand, and against the gradients of the papers' losses."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradus.models.objectives.advantages.group_relative import rloo
from gradus.models.objectives.advantages.regressive import copg, flowrl, rebel, reg_grpo
from gradus.models.objectives.aggregations.means import sequence_mean
from gradus.models.objectives.losses.linear import reinforce
from gradus.models.objectives.rows import Rows

LENGTHS, GROUPS = [2, 1, 3, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1, 2, 1]
REWARDS = [1.0, 0.0, 0.5, 1.0, 1.0, math.nan, 1.0, 1.0]
"""A group of three rewards, one of equal rewards with an unjudged row without tokens, and a group of one."""
MASK = torch.tensor([True] * 6 + [True] * 5 + [False])
COLUMNS = {"reward": torch.tensor(REWARDS, dtype=torch.float64), "group": torch.tensor(GROUPS)}
JUDGED = [[0, 1, 2], [3, 4, 7], [6]]
PAIRS = [pair for rows in JUDGED for pair in itertools.combinations(rows, 2)]


def logps(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    now, other = (torch.randn(sum(LENGTHS), generator=drawn, dtype=torch.float64) for _ in range(2))
    return now, now + scale * other


def rows_of(now: Tensor, other: Tensor) -> Rows:
    tokens = {"now.logp": now, "old.logp": other, "reference.logp": other}
    return Rows(COLUMNS, tokens, torch.tensor(LENGTHS), MASK)


def taken(component: Callable[[Rows], Tensor], now: Tensor, other: Tensor) -> list[float]:
    """The gradient of the step that `reinforce` and `sequence_mean` make of the coefficients."""
    rows, ours = rows_of(now, other), now.clone().requires_grad_()
    step = rows.adding(of_tokens={"now.logp": ours, "advantage": component(rows)[rows.row]})
    torch.where(MASK, reinforce(step)[0] * sequence_mean(step), 0.0).sum().backward()
    assert ours.grad is not None
    return ours.grad.tolist()


def gradient(paper: Callable[[list[Tensor]], Tensor], now: Tensor, other: Tensor) -> list[float]:
    """The gradient of a loss of the rows' log-ratios."""
    leaf = now.clone().requires_grad_()
    ratios = [part.sum() for part in torch.where(MASK, leaf - other, 0.0).split(LENGTHS)]
    (found,) = torch.autograd.grad(paper(ratios), leaf)
    return found.tolist()


def test_a_pair_is_pulled_by_what_its_log_ratios_lack_of_its_rewards() -> None:
    columns = {"reward": torch.tensor([1.0, 0.0], dtype=torch.float64), "group": torch.tensor([0, 0])}
    now, other = torch.tensor([-1.0, -1.0, -2.0]), torch.tensor([-1.1, -1.1, -1.9])
    tokens = {"now.logp": now, "old.logp": other, "reference.logp": other}
    rows = Rows(columns, tokens, torch.tensor([2, 1]))
    # l = 0.2 and -0.1. REBEL, eta 1/2: 0.3 / eta = 0.6 of 1, -dL/dl = 2 (1 - 0.6) / eta = 1.6; A = N |o| that.
    assert rebel(rows, eta=0.5).tolist() == pytest.approx([2 * 2 * 1.6, -2 * 1.6])
    # CoPG, beta 2: R_1 - R_2 = 1 - 2 * 0.3 = 0.4.
    assert copg(rows, beta=2.0).tolist() == pytest.approx([2 * 2 * 0.4, -2 * 0.4])
    # Reg-GRPO: A = +-1 / sqrt 2; l - mean = +-0.15, std 0.3 / sqrt 2 below 1: residual r = 0.7071 - 0.15, mean over 2.
    residual = math.sqrt(0.5) - 0.15
    assert reg_grpo(rows, std_eps=0.0).tolist() == pytest.approx([2 * 2 * residual, -2 * residual])


@pytest.mark.parametrize("eta", [0.3, 4.0])
def test_rebel_has_the_gradient_of_the_papers_loss(eta: float) -> None:
    def paper(ratios: list[Tensor]) -> Tensor:
        return torch.stack([((ratios[i] - ratios[j]) / eta - (REWARDS[i] - REWARDS[j])) ** 2 for i, j in PAIRS]).mean()

    found = taken(lambda rows: rebel(rows, eta=eta), *logps())
    assert found == pytest.approx(gradient(paper, *logps()), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_copg_has_the_gradient_of_the_papers_loss(beta: float) -> None:
    def paper(ratios: list[Tensor]) -> Tensor:
        value = [reward - beta * ratio for reward, ratio in zip(REWARDS, ratios, strict=True)]
        return torch.stack([(value[i] - value[j]) ** 2 / (2 * beta) for i, j in PAIRS]).mean()

    found = taken(lambda rows: copg(rows, beta=beta), *logps())
    assert found == pytest.approx(gradient(paper, *logps()), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("least", [0.01, 100.0])
def test_reg_grpo_has_the_gradient_of_the_papers_loss_with_its_std_given(least: float) -> None:
    def paper(ratios: list[Tensor]) -> Tensor:
        known = torch.stack(ratios[:3])  # the group whose rewards vary
        advantage = torch.tensor([1.0, -1.0, 0.0])  # rewards 1, 0, 1/2: std 1/2
        std = max(float(known.detach().std()), least)
        return ((advantage - (known - known.mean()) / std) ** 2).mean()

    found = taken(lambda rows: reg_grpo(rows, std_eps=0.0, least_std=least), *logps())
    assert found == pytest.approx(gradient(paper, *logps()), rel=1e-6, abs=1e-9)


def test_flowrl_pulls_a_pair_to_its_odds_by_hand() -> None:
    columns = {"reward": torch.tensor([1.0, 0.0], dtype=torch.float64), "group": torch.tensor([0, 0])}
    now = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64)
    reference = torch.tensor([-1.1, -1.3, -1.9], dtype=torch.float64)
    tokens = {"now.logp": now, "old.logp": now, "reference.logp": reference}
    rows = Rows(columns, tokens, torch.tensor([2, 1]))
    # h = 0.2 and -0.1, A = +-1 / sqrt 2, beta 2: beta A - h = sqrt 2 - 0.2 and -sqrt 2 + 0.1, mean -0.05.
    lack = math.sqrt(2) - 0.15
    assert flowrl(rows, beta=2.0, std_eps=0.0).tolist() == pytest.approx([2 * lack, -2 * lack])
    # An older policy: the first row is 1.5 times, the second e^-1 times as likely by now; the weights are 1.2 and 0.8.
    older = {"old.logp": now - torch.tensor([math.log(1.5), 0.0, -1.0], dtype=torch.float64)}
    log_z = (1.2 * (math.sqrt(2) - 0.2) - 0.8 * (math.sqrt(2) - 0.1)) / 2
    wanted = [2.4 * (math.sqrt(2) - 0.2 - log_z), 1.6 * (-math.sqrt(2) + 0.1 - log_z)]
    found = flowrl(rows.adding(of_tokens=older), beta=2.0, clip=0.2, std_eps=0.0)
    assert found.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("clip", [0.2, 0.01])
def test_flowrl_has_the_gradient_of_its_loss_with_the_best_z(clip: float) -> None:
    now, other = logps()
    older = now + 0.1 * torch.randn(len(now), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    advantage = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # rewards 1, 0, 1/2

    def paper(leaf: Tensor) -> Tensor:
        """The loss of the authors' code; Z is found by least squares, with its own gradient."""
        parts = [torch.where(MASK, each, 0.0).split(LENGTHS) for each in (leaf - other, now - older)]
        counts = [max(1, int(part.sum())) for part in MASK.split(LENGTHS)]
        total = leaf.new_zeros(())
        for members in JUDGED:
            weight = torch.stack([parts[1][i].sum().exp().clamp(1 - clip, 1 + clip) for i in members])
            flow = torch.stack([parts[0][i].sum() / counts[i] for i in members]) - 15.0 * advantage[members]
            root = weight.sqrt()[:, None]
            log_z = -torch.linalg.lstsq(root, root * flow[:, None]).solution[0, 0]
            total = total + (weight * (log_z + flow) ** 2).sum()
        return total / 7  # rows with tokens

    leaf = now.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(paper(leaf), leaf)
    ours = now.clone().requires_grad_()
    step = rows_of(now, other).adding(of_tokens={"old.logp": older})
    coefficient = flowrl(step, clip=clip, std_eps=0.0)
    step = step.adding(of_tokens={"now.logp": ours, "advantage": coefficient[step.row]})
    torch.where(MASK, reinforce(step)[0] * sequence_mean(step), 0.0).sum().backward()
    assert ours.grad is not None
    assert ours.grad.tolist() == pytest.approx(wanted.tolist(), rel=1e-6, abs=1e-9)
    assert coefficient[[5, 6]].tolist() == [0.0, 0.0]  # without a reward or tokens; a group of one
    assert float(coefficient[[3, 4, 7]].abs().min()) > 0  # equal rewards are pulled to the reference


def test_as_an_update_begins_rebel_is_rloo_by_a_factor() -> None:
    now, _ = logps()
    rows = rows_of(now, now)
    counts = rows.row_tokens
    # (n r_i - sum r) = (n - 1) RLOO, of six pairs, times 2 / eta, N = 7 rows with tokens, |o_i|.
    group = torch.tensor([3, 3, 3, 3, 3, 3, 1, 3])
    expected = rloo(rows) * (group - 1) / 6 * 2 / 0.5 * 7 * counts
    assert rebel(rows, eta=0.5).tolist() == pytest.approx(expected.tolist())
    assert float(rebel(rows)[:3].abs().min()) == 0.0  # the middle reward
    assert rebel(rows)[3:].tolist() == [0.0] * 5


@settings(max_examples=40)
@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6), st.permutations(range(6)))
def test_coefficients_sum_to_zero_in_a_group_and_follow_the_rows(rewards: list[float], order: list[int]) -> None:
    drawn = torch.Generator().manual_seed(1)
    columns = {"reward": torch.tensor(rewards, dtype=torch.float64), "group": torch.tensor([0, 1, 0, 1, 0, 1])}
    now, old = (torch.randn(6, generator=drawn, dtype=torch.float64) for _ in range(2))
    rows = Rows(columns, {"now.logp": now, "old.logp": old, "reference.logp": old}, torch.ones(6, dtype=torch.int64))
    for component in (rebel, copg, reg_grpo, partial(flowrl, clip=0.0)):
        found = component(rows)
        assert [float(found[i::2].sum()) for i in (0, 1)] == pytest.approx([0.0, 0.0], abs=1e-9)
        again = component(rows.select(torch.tensor(order)))
        assert again.tolist() == pytest.approx(found[torch.tensor(order)].tolist(), abs=1e-9)
