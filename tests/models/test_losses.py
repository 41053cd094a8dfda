"""Losses and aggregations against numbers worked out by hand, gradients against finite differences."""

import math

import pytest
import torch
from torch import Tensor

from models.batch import TokenBatch
from models.losses import Totals, clip, fixed_length, k3, sequence_mean, token_mean


def batch(ratio: list[float], advantage: list[float], mask: list[bool] | None = None) -> TokenBatch:
    logp = torch.tensor([math.log(r) for r in ratio], dtype=torch.float64, requires_grad=True)
    return TokenBatch(
        logp=logp,
        logp_old=torch.zeros(len(ratio), dtype=torch.float64),
        advantage=torch.tensor(advantage, dtype=torch.float64),
        mask=torch.tensor(mask or [True] * len(ratio)),
        row=torch.zeros(len(ratio), dtype=torch.int64),
    )


def test_the_clipped_surrogate_is_the_worse_of_both() -> None:
    # Ratio 1.5 clipped to 1.28 for A = 2; not for A = -2. Ratio 0.5 clipped to 0.8 for A = -1; not for A = 1.
    loss, metrics = clip(batch([1.5, 1.5, 0.5, 0.5, 1.0], [2, -2, -1, 1, 3]), clip_low=0.2, clip_high=0.28)
    assert loss.tolist() == pytest.approx([-2.56, 3.0, 0.8, -0.5, -3.0])
    assert (int(metrics["clip_frac_high"]), int(metrics["clip_frac_low"])) == (1, 1)


def test_masked_tokens_are_not_counted_as_clipped() -> None:
    _, metrics = clip(batch([1.5, 1.5], [2, 2], [True, False]), clip_low=0.2, clip_high=0.28)
    assert int(metrics["clip_frac_high"]) == 1


def test_k3_is_that_of_its_definition() -> None:
    # logp_ref - logp = ln 2: 2 - ln 2 - 1.
    found = k3(torch.tensor([0.0, 0.0]), torch.tensor([math.log(2), 0.0]))
    assert found.tolist() == pytest.approx([1 - math.log(2), 0.0], abs=1e-6)


def test_the_gradient_is_that_of_finite_differences() -> None:
    start = torch.tensor([0.1, -0.4, 0.05, 0.6], dtype=torch.float64)
    advantage = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def loss(logp: Tensor) -> Tensor:
        zeros = torch.zeros(4, dtype=torch.float64)
        tokens = TokenBatch(logp, zeros, advantage, torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.int64))
        value, _ = clip(tokens, clip_low=0.2, clip_high=0.28)
        return (value + 0.1 * k3(logp, zeros - 0.3)).sum()

    assert torch.autograd.gradcheck(loss, (start.clone().requires_grad_(),))


def test_tokens_without_a_finite_old_logprob_leave_loss_and_count() -> None:
    tokens = TokenBatch(
        logp=torch.tensor([-1.0, -1.0]),
        logp_old=torch.tensor([-1.0, float("nan")]),
        advantage=torch.ones(2),
        mask=torch.ones(2, dtype=torch.bool),
        row=torch.zeros(2, dtype=torch.int64),
    ).finite()
    assert tokens.mask.tolist() == [True, False]
    loss, _ = clip(tokens, clip_low=0.2, clip_high=0.2)
    assert bool(torch.isfinite(loss).all())


LOSS = torch.tensor([1.0, 2.0, 3.0, 10.0, 99.0])
MASK = torch.tensor([True, True, True, True, False])
ROW = torch.tensor([0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("aggregate", "expected"), [(token_mean, 16 / 4), (sequence_mean, (2.0 + 10.0) / 2), (fixed_length, 16 / (2 * 8))]
)
def test_aggregations_and_their_independence_of_micro_batches(aggregate: object, expected: float) -> None:
    assert callable(aggregate)
    totals = Totals.of(MASK, ROW, 2, max_tokens=8)
    whole = float(aggregate(LOSS, MASK, ROW, totals))
    parts = sum(float(aggregate(LOSS[p], MASK[p], ROW[p], totals)) for p in (slice(0, 3), slice(3, 5)))
    assert whole == pytest.approx(expected)
    assert parts == pytest.approx(expected)
