"""DPO on pairs of a group against a hand calculation and against the gradient of the paper's loss."""

import math

import pytest
import torch

from gradus.models.objectives.advantages.pairwise import dpo
from gradus.models.objectives.aggregations.means import sequence_mean
from gradus.models.objectives.losses.linear import reinforce
from gradus.models.objectives.rows import Rows


def test_dpo_pulls_a_pair_apart_by_the_sigmoid_of_its_margin() -> None:
    columns = {"reward": torch.tensor([1.0, 0.0]), "group": torch.tensor([0, 0])}
    logp, ref = torch.tensor([-1.0, -1.0, -2.0]), torch.tensor([-1.1, -1.1, -1.9])
    rows = Rows(columns, {"now.logp": logp, "reference.logp": ref}, torch.tensor([2, 1]))
    # h = 0.2 and -0.1; beta (h_w - h_l) = 0.15; A = N |o_i| times +-beta sigmoid(-0.15).
    pull = 0.5 / (1 + math.exp(0.15))
    assert dpo(rows, beta=0.5).tolist() == pytest.approx([2 * 2 * pull, -2 * 1 * pull])


@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_dpo_with_reinforce_has_the_gradient_of_the_papers_loss(beta: float) -> None:
    lengths, groups, rewards = [2, 1, 3, 1, 2, 0, 1], [0, 0, 0, 1, 1, 1, 2], [1.0, 0.0, 0.5, 1.0, 1.0, math.nan, 1.0]
    drawn = torch.Generator().manual_seed(0)
    logp, ref = (torch.randn(sum(lengths), generator=drawn, dtype=torch.float64) for _ in range(2))
    mask = torch.tensor([True] * 9 + [False])

    def paper(values: torch.Tensor) -> torch.Tensor:
        parts = torch.where(mask, values - ref, 0.0).split(lengths)
        h = [part.sum() for part in parts]
        pairs = [(i, j) for i in range(7) for j in range(7) if groups[i] == groups[j] and rewards[i] > rewards[j]]
        assert pairs == [(0, 1), (0, 2), (2, 1)]
        return -torch.stack([torch.nn.functional.logsigmoid(beta * (h[i] - h[j])) for i, j in pairs]).mean()

    (expected,) = torch.autograd.grad(paper(leaf := logp.clone().requires_grad_()), leaf)
    columns = {"reward": torch.tensor(rewards, dtype=torch.float64), "group": torch.tensor(groups)}
    rows = Rows(columns, {"now.logp": logp, "reference.logp": ref}, torch.tensor(lengths), mask)
    ours = logp.clone().requires_grad_()
    step = rows.adding(of_tokens={"now.logp": ours, "advantage": dpo(rows, beta=beta)[rows.row]})
    loss, _ = reinforce(step)
    torch.where(mask, loss * sequence_mean(step), 0.0).sum().backward()
    assert ours.grad is not None
    assert ours.grad.tolist() == pytest.approx(expected.tolist(), rel=1e-6)  # aggregations weigh in float32
