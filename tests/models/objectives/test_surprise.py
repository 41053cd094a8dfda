"""Entropy-SFT's choice of tokens, against numbers by hand and a sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.surprise import surprising

LOGP = [-0.1, -2.0, -1.0, -3.0, -9.0]
ENTROPY = [0.5, 1.5, 0.2, 3.5, 0.0]
"""The excesses are -0.4, 0.5, 0.8, -0.5 and 9.0; the last token does not count."""


def step(logp: list[float], entropy: list[float], mask: list[bool] | None = None) -> Rows:
    of_tokens = {"now.logp": torch.tensor(logp), "now.entropy": torch.tensor(entropy)}
    counts = None if mask is None else torch.tensor(mask, dtype=torch.bool)
    return Rows({}, of_tokens, torch.tensor([len(logp), 0]), counts)


@pytest.mark.parametrize(
    ("frac", "coef", "weights"),
    [
        (0.25, 1.0, [0, 0, 4, 0]),  # the quantile of 0.75 lies between 0.5 and 0.8
        (0.5, 1.0, [0, 2, 2, 0]),
        (1.0, 1.0, [1, 1, 1, 1]),
        (0.25, 0.0, [0, 0, 0, 4]),  # the least likely token
    ],
)
def test_the_tokens_beyond_the_quantile_share_the_loss(frac: float, coef: float, weights: list[float]) -> None:
    found, metrics = surprising(step(LOGP, ENTROPY, [True] * 4 + [False]), frac=frac, coef=coef)
    assert found[:4].tolist() == weights
    assert metrics["surprising_frac"][:4].tolist() == [float(each > 0) for each in weights]


@given(st.permutations(range(20)), st.sampled_from([0.05, 0.2, 0.5, 0.9]))
@settings(max_examples=20)
def test_the_mean_is_that_of_the_largest(order: list[int], frac: float) -> None:
    excess = [each / 4 for each in order]
    found, _ = surprising(step([-each for each in excess], [0.0] * 20), frac=frac)
    largest = sorted(excess)[20 - round(20 * frac) :]
    assert float((found * torch.tensor(excess)).mean()) == pytest.approx(sum(largest) / len(largest))


def test_equal_tokens_weigh_alike_and_none_are_none() -> None:
    assert surprising(step([-1.0] * 3, [0.5] * 3))[0].tolist() == [1.0] * 3
    assert surprising(step([-1.0], [0.5], [False]))[0].tolist() == [0.0]
    assert surprising(step([], []))[0].tolist() == []
