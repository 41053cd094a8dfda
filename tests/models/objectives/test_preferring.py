"""TRPA and the preference of given answers, by hand and against the gradients of their losses."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gradus.models.objectives.advantages.pairwise import dpo
from gradus.models.objectives.advantages.preferring import given_first, trpa
from gradus.models.objectives.aggregations.means import sequence_mean
from gradus.models.objectives.losses.linear import reinforce
from gradus.models.objectives.rows import Rows

LENGTHS, GROUPS = [2, 1, 3, 1, 2, 0, 1], [0, 0, 0, 1, 1, 1, 2]
REWARDS = [1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 1.0]
MASK = torch.tensor([True] * 9 + [False])


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    now, ref, old = (torch.randn(sum(LENGTHS), generator=generator, dtype=torch.float64) for _ in range(3))
    return now, ref, now + 0.3 * old


def rows_of(rewards: list[float], now: Tensor, ref: Tensor, old: Tensor) -> Rows:
    columns = {
        "reward": torch.tensor(rewards, dtype=torch.float64),
        "group": torch.tensor(GROUPS),
        "origin": np.array(["expert", "own", "own", "own", "own", "expert", "own"], dtype=np.object_),
    }
    tokens = {"now.logp": now, "reference.logp": ref, "old.logp": old}
    return Rows(columns, tokens, torch.tensor(LENGTHS), MASK)


def taken(rows: Rows, coefficient: Tensor) -> list[float]:
    """The gradient of the step that `reinforce` and `sequence_mean` make of coefficients."""
    ours = rows["now.logp"].clone().requires_grad_()
    by_token = coefficient if len(coefficient) == len(rows.row) else coefficient[rows.row]
    step = rows.adding(of_tokens={"now.logp": ours, "advantage": by_token})
    torch.where(MASK, reinforce(step)[0] * sequence_mean(step), 0.0).sum().backward()
    assert ours.grad is not None
    return ours.grad.tolist()


def test_trpa_has_the_gradient_of_its_loss_with_pairs() -> None:
    now, ref, old = drawn()
    leaf = now.clone().requires_grad_()
    parts = torch.where(MASK, leaf - ref, 0.0).split(LENGTHS)
    h = [part.sum() / max(1, num) for part, num in zip(parts, [2, 1, 3, 1, 2, 0, 0], strict=True)]
    # Group 0 has levels 1, 1/2, 0; of group 1 the wrong row has no token, group 2 is one row.
    pairs = [(0, 1, 2.5 * 0.7), (0, 2, 2.5 * 0.7), (2, 1, 0.7)]
    loss = -torch.stack([logsigmoid(b * (h[i] - h[j])) for i, j, b in pairs]).mean()
    away = (old - leaf)[MASK]
    loss = loss + 0.4 * (away.exp() - away - 1).mean()
    (expected,) = torch.autograd.grad(loss, leaf)
    rows = rows_of(REWARDS, now, ref, old)
    found = taken(rows, trpa(rows, beta=0.7, kl_coef=0.4))
    assert found == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize(("reward", "sign"), [(1.0, 1.0), (0.0, -1.0)])
def test_without_a_pair_trpa_pulls_all_up_or_all_down(reward: float, sign: float) -> None:
    now, ref, old = drawn()
    leaf = now.clone().requires_grad_()
    parts = torch.where(MASK, leaf - ref, 0.0).split(LENGTHS)
    h = torch.stack([parts[i].mean() for i in range(5)])  # the last two rows have no token that counts
    (expected,) = torch.autograd.grad(-logsigmoid(sign * h).mean(), leaf)
    rows = rows_of([reward] * 7, now, ref, old)
    assert taken(rows, trpa(rows, kl_coef=0.0)) == pytest.approx(expected.tolist(), rel=1e-6)
    unjudged = rows_of([math.nan] * 7, now, ref, old)
    assert trpa(unjudged, kl_coef=0.0).tolist() == [0.0] * 10


def test_trpas_pair_by_hand() -> None:
    columns = {"reward": torch.tensor([1.0, 0.0]), "group": torch.tensor([0, 0])}
    now, ref = torch.tensor([-1.0, -1.0, -2.0]), torch.tensor([-1.1, -1.1, -1.9])
    rows = Rows(columns, {"now.logp": now, "reference.logp": ref, "old.logp": now}, torch.tensor([2, 1]))
    # h = 0.1 and -0.1, b = 2.5 * 2: pull 5 sigmoid(-1) a row, N = 2; the mean over tokens takes |o| away again.
    pull = 2 * 5 / (1 + math.e)
    assert trpa(rows, beta=2.0, kl_coef=1.0).tolist() == pytest.approx([pull, pull, -pull])


def test_given_rows_are_preferred_to_the_policys_own_whatever_their_rewards() -> None:
    now, ref, old = drawn()
    rows = rows_of([0.0] * 7, now, ref, old)
    leaf = now.clone().requires_grad_()
    h = [part.sum() for part in torch.where(MASK, leaf - ref, 0.0).split(LENGTHS)]
    # The given row of group 1 has no token; group 2 has no given row.
    (expected,) = torch.autograd.grad(-(logsigmoid(0.3 * (h[0] - h[1])) + logsigmoid(0.3 * (h[0] - h[2]))) / 2, leaf)
    assert taken(rows, given_first(rows, beta=0.3)) == pytest.approx(expected.tolist(), rel=1e-6)
    preferred = rows_of([1.0, 0.0, 0.0, 0.0, 0.0, math.nan, 0.0], now, ref, old)
    assert given_first(rows, beta=0.3).tolist() == dpo(preferred, beta=0.3).tolist()
