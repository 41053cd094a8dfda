"""Token weights and advantages made from a whole step, against numbers worked out by hand or by autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gradus.models.objectives.advantages.discriminative import disco
from gradus.models.objectives.aggregations.means import sequence_mean
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.entropy import top_entropy

LENGTHS = [3, 1, 2, 1, 2]
"""Five rows: right, wrong, wrong in group 0; right alone in group 1; wrong alone in group 2."""


def view(mask: Tensor | None = None, **columns: Tensor) -> Rows:
    verdicts = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    given = {name.replace("_", ".", 1): values for name, values in columns.items()}
    return Rows({"reward": verdicts, "group": torch.tensor([0, 0, 0, 1, 2])}, given, torch.tensor(LENGTHS), mask)


def test_the_mean_of_a_row_leaves_out_what_does_not_count() -> None:
    mask = torch.tensor([1, 0, 1, 1, 1, 1, 0, 1, 1]).bool()
    found = view(mask=mask).row_mean(torch.arange(9.0))
    assert found.tolist() == [1.0, 3.0, 4.5, 0.0, 7.5]


@pytest.mark.parametrize(
    ("frac", "kept"),
    # Entropies 0.1 .. 0.8 of eight counted tokens: the 0.8 quantile lies 0.6 of the way from 0.6 to 0.7.
    [(0.2, [0.7, 0.8]), (0.5, [0.5, 0.6, 0.7, 0.8]), (1.0, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])],
)
def test_the_tokens_of_highest_entropy_of_the_whole_step_are_kept(frac: float, kept: list[float]) -> None:
    entropy = torch.tensor([0.4, 0.8, 0.1, 0.7, 0.2, 0.3, 9.0, 0.6, 0.5])
    mask = torch.ones(9, dtype=torch.bool).index_fill(0, torch.tensor([6]), value=False)
    weight, metrics = top_entropy(view(now_entropy=entropy, mask=mask), frac=frac)
    found = entropy[(weight == 1) & mask]
    assert sorted(found.tolist()) == pytest.approx(kept)
    assert set(weight.tolist()) <= {0.0, 1.0}
    if frac == 0.2:
        assert float(metrics["top_entropy_threshold_max"][0]) == pytest.approx(0.66)


def objective(logp: Tensor, old: Tensor, score: str, tau: float, max_kl: float, kl_penalty: float) -> Tensor:
    """DisCO's J, group by group, as the paper writes it: group 0 alone has right and wrong answers, Q is 3."""
    values = logp if score == "log_likelihood" else (logp - old).exp()
    s = [part.mean() for part in values.split(LENGTHS)]
    j = s[0] - tau * torch.log((torch.exp(s[1] / tau) + torch.exp(s[2] / tau)) / 2)
    kl = (old - logp).mean()
    return j / 3 - kl_penalty / 2 * torch.clamp(kl - max_kl, min=0) ** 2


@pytest.mark.parametrize("score", ["log_likelihood", "ratio"])
@pytest.mark.parametrize("shift", [0.0, 0.3])  # KL(old || policy) below the bound, and above it
def test_the_coefficients_of_disco_are_the_gradient_of_its_objective(score: Any, shift: float) -> None:
    logp = torch.linspace(-2.0, -0.4, 9, dtype=torch.float64).requires_grad_()
    old = (logp + torch.tensor([0.2, -0.1, 0.1] * 3) - 0.1 + shift).detach()
    objective(logp, old, score, 0.5, 0.05, 7.0).backward()

    step = view(now_logp=logp.detach(), old_logp=old)
    coefficients = disco(step, score=score, tau=0.5, max_kl=0.05, kl_penalty=7.0)
    again = logp.detach().requires_grad_()
    (sequence_mean(step) * coefficients * again).sum().backward()
    assert logp.grad is not None
    assert again.grad is not None
    assert torch.allclose(again.grad, logp.grad, atol=1e-7)
    assert float(logp.grad.abs().max()) > 0.01


def test_groups_of_one_verdict_have_no_coefficient_however_the_scores_lie() -> None:
    logp = torch.full((9,), -1.0, dtype=torch.float64)
    far = logp.clone().index_fill(0, torch.tensor([3, 4, 5]), -1e5)
    for given in (logp, far):
        found = disco(view(now_logp=given, old_logp=given), tau=0.01)
        assert found[6:].tolist() == [0.0, 0.0, 0.0]
        assert bool(torch.isfinite(found).all())
        # By hand: group 0 pulls its right answer by 5 rows / 3 groups and pushes the wrong ones by as much in sum.
        assert float(found[0]) == pytest.approx(5 / 3)
        assert float(found[3] + found[4]) == pytest.approx(-5 / 3)
