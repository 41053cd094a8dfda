"""GSPO against hand calculations: two completions of two and one tokens."""

import math

import pytest
import torch

from gradus.models.objectives.losses.sequence import gspo
from gradus.models.objectives.rows import Rows

LOG_RATIOS = [0.2, 0.0, -0.3]
"""Of each token; the rows' means are 0.1 and -0.3."""


def rows(advantages: list[float]) -> tuple[Rows, torch.Tensor]:
    old = torch.full((3,), -1.0, dtype=torch.float64)
    logp = (old + torch.tensor(LOG_RATIOS, dtype=torch.float64)).requires_grad_()
    advantage = torch.tensor(advantages, dtype=torch.float64)[torch.tensor([0, 0, 1])]
    return Rows({}, {"now.logp": logp, "old.logp": old, "advantage": advantage}, torch.tensor([2, 1])), logp


@pytest.mark.parametrize(
    ("advantages", "clip", "losses", "gradient"),
    [
        # Within the bounds: L_i = -s_i A_i, whose gradient is -s_i A_i / |o_i| for each token of the mean over tokens.
        ([1.0, -1.0], 0.5, [-math.exp(0.1), math.exp(-0.3)], [-math.exp(0.1) / 2, -math.exp(0.1) / 2, math.exp(-0.3)]),
        # The paper's bounds: both completions are clipped whole, so neither has a gradient.
        ([1.0, -1.0], None, [-1.0004, 0.9997], [0.0, 0.0, 0.0]),
        # Outside the bounds, but where the surrogate is lower without them.
        ([-1.0, 1.0], None, [math.exp(0.1), -math.exp(-0.3)], [math.exp(0.1) / 2, math.exp(0.1) / 2, -math.exp(-0.3)]),
    ],
)
def test_gspo_has_the_loss_and_gradient_of_whole_completions(
    advantages: list[float], clip: float | None, losses: list[float], gradient: list[float]
) -> None:
    view, logp = rows(advantages)
    bounds = {} if clip is None else {"clip_low": clip, "clip_high": clip}
    loss, _ = gspo(view, **bounds)
    assert loss.tolist() == pytest.approx([losses[0], losses[0], losses[1]])
    view.row_mean(loss).sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(gradient)


def test_gspo_counts_clipped_completions_by_their_tokens() -> None:
    view, _ = rows([1.0, -1.0])
    _, metrics = gspo(view)
    assert metrics["clip_frac_high"].tolist() == [1, 1, 0]
    assert metrics["clip_frac_low"].tolist() == [0, 0, 1]
