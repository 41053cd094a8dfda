"""Weights from the advantage by hand."""

import math

import pytest
import torch

from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.by_advantage import exp_advantage, without_outliers


def rows(advantages: list[float], mask: list[bool] | None = None) -> Rows:
    counted = None if mask is None else torch.tensor(mask)
    sizes = torch.tensor([len(advantages), 0])
    return Rows({}, {"advantage": torch.tensor(advantages, dtype=torch.float64)}, sizes, counted)


def test_red_weight_grows_with_the_advantage() -> None:
    weight, metrics = exp_advantage(rows([1.0, 0.0, -2.0]), temperature=2.0)
    assert weight.tolist() == pytest.approx([math.exp(0.5), 1, math.exp(-1)])
    assert metrics["exp_advantage_mean"].tolist() == pytest.approx(weight.tolist())


def test_outliers_among_the_counted_tokens_weigh_nothing() -> None:
    # Of fifteen 0 and one 16: mean 1, std sqrt(15) = 3.87; 15 lies 3.87 std off. What does not count moves nothing.
    values = [0.0] * 15 + [16.0, 1e9]
    weight, metrics = without_outliers(rows(values, [True] * 16 + [False]))
    assert weight[:16].tolist() == [1.0] * 15 + [0.0]
    assert metrics["outlier_frac"][:16].tolist() == [0.0] * 15 + [1.0]
    assert without_outliers(rows(values[:16]), sigmas=4.0)[0].tolist() == [1.0] * 16


def test_equal_advantages_and_none_at_all_are_kept() -> None:
    assert without_outliers(rows([0.1] * 7))[0].tolist() == [1.0] * 7
    assert without_outliers(rows([1.0], [False]))[0].shape == (1,)
