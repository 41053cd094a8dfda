"""Weights of off-policy tokens against values worked out by hand: ratios e^(trainer - sampler)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.chosen import CorrectionConfig
from gradus.models.objectives.rows import Rows
from gradus.tasks.identity.loading import load


def weights(
    old: torch.Tensor, sampler: torch.Tensor, row: torch.Tensor, mask: torch.Tensor, how: str, cap: float
) -> torch.Tensor:
    """The weights alone."""
    rows = Rows({}, {"old.logp": old, "sampler.logp": sampler}, torch.bincount(row), mask)
    return load(CorrectionConfig.model_validate({"name": how, "cap": cap}))(rows)[0]


OLD = torch.tensor([0.0, 0.0, 0.0, 0.0])
SAMPLER = torch.log(torch.tensor([1.0, 0.25, 2.0, 8.0]))  # ratios 1, 4, 1/2, 1/8
ROW = torch.tensor([0, 0, 1, 1])  # ratios of whole completions: 4 and 1/16
ALL = torch.ones(4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_truncated", [1.0, 3.0, 0.5, 0.125]),
        ("token_masked", [1.0, 0.0, 0.5, 0.0]),
        ("sequence_truncated", [3.0, 3.0, 0.0625, 0.0625]),
        ("sequence_masked", [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_weights_by_hand(how: str, expected: list[float]) -> None:
    found = weights(OLD, SAMPLER, ROW, ALL, how, cap=3.0)  # pyright: ignore[reportArgumentType]
    assert found.tolist() == pytest.approx(expected)


def test_tokens_that_do_not_count_weigh_nothing_in_their_completion() -> None:
    mask = torch.tensor([True, False, True, True])
    assert weights(OLD, SAMPLER, ROW, mask, "sequence_truncated", cap=3.0).tolist() == pytest.approx(
        [1, 1, 1 / 16, 1 / 16]
    )


def test_weights_carry_no_gradient_and_never_overflow() -> None:
    old = torch.tensor([500.0], requires_grad=True)
    found = weights(old, torch.tensor([0.0]), torch.tensor([0]), ALL[:1], "token_truncated", cap=1e9)
    assert not found.requires_grad
    assert float(found) == pytest.approx(math.exp(10.0), rel=1e-4)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_the_policys_own_rollouts_weigh_one_whatever_the_method(values: list[float]) -> None:
    logp, rows = torch.tensor(values), torch.arange(len(values)) // 2
    mask = torch.ones(len(values), dtype=torch.bool)
    for how in ("token_truncated", "token_masked", "sequence_truncated", "sequence_masked"):
        assert weights(logp, logp, rows, mask, how, cap=2.0).tolist() == pytest.approx([1.0] * len(values))
