"""RL-PLUS's baseline and GRAO's coefficients by hand, and against the gradient of GRAO's objective."""

import math

import numpy as np
import pytest
import torch

from gradus.models.objectives.advantages.imitating import grao, rl_plus
from gradus.models.objectives.rows import Rows

NAN = math.nan


def test_the_baseline_is_the_mean_of_the_policys_own_rewards() -> None:
    columns = {
        "reward": torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 1.0, NAN, 1.0], dtype=torch.float64),
        "group": torch.tensor([0, 0, 0, 1, 1, 1, 1, 2]),
        "origin": np.array(["own", "own", "expert", "own", "own", "expert", "own", "expert"], dtype=np.object_),
    }
    rows = Rows(columns, {}, torch.ones(8, dtype=torch.int64))
    # Group 0: own mean 1/2; group 1: own mean 0, its unjudged row has none; group 2 has no own row.
    assert rl_plus(rows).tolist() == [-0.5, 0.5, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0]


COLUMNS = {
    "reward": torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64),
    "group": torch.tensor([0, 0, 0, 1, 1]),
    "origin": np.array(["own", "own", "expert", "own", "expert"], dtype=np.object_),
}


def test_graos_coefficients_by_hand() -> None:
    # Rewards 0, 1, 1: A = -2/sqrt(3), 1/sqrt(3), 1/sqrt(3). The first sample alone is worse than its reference:
    # sigmoid(l_i - l_y) = sigmoid(-1 + 3). Group 1 is as good as its reference.
    logp = torch.tensor([-1.0, -2.0, -2.5, -3.5, -1.0, -4.0])
    rows = Rows(COLUMNS, {"now.logp": logp}, torch.tensor([1, 1, 2, 1, 1]))
    pull, unit = 0.5 / (1 + math.exp(-2)), 1 / math.sqrt(3)
    expected = [-2 * unit - pull, unit, 2 * unit + pull / 2, 0.0, 0.0]  # a reference's is the mean over two samples
    assert grao(rows, beta=2.0, align=0.5, std_eps=0.0).tolist() == pytest.approx(expected)


def test_graos_coefficients_are_the_gradient_of_its_objective() -> None:
    lengths = torch.tensor([2, 1, 2, 1, 1])
    logp = torch.tensor([-1.0, -0.5, -2.0, -2.5, -3.5, -1.0, -4.0], dtype=torch.float64)
    likely = torch.stack([part.mean() for part in logp.split(lengths.tolist())]).requires_grad_()
    unit = 1 / math.sqrt(3)
    samples = -2 * unit * likely[0] + unit * likely[1] + 0.5 * torch.nn.functional.logsigmoid(likely[2] - likely[0])
    objective = samples / 2 + 2.0 * unit * likely[2]  # a mean over two samples, and one over one reference
    (expected,) = torch.autograd.grad(objective, likely)
    found = grao(Rows(COLUMNS, {"now.logp": logp}, lengths), beta=2.0, align=0.5, std_eps=0.0)
    assert (found / torch.tensor([2, 2, 1, 2, 1])).tolist() == pytest.approx(expected.tolist())
