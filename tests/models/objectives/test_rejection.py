"""Bounded weights and rejected completions, by hand: ratios e^(trainer - sampler) of four completions."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.corrections.rejection import icepop, rejection, truncated
from gradus.models.objectives.rows import Rows

RATIOS = [2.0, 0.5, 8.0, 0.25, 1.0, 3.0]
LENGTHS = [2, 0, 2, 2]
MASK = [True, True, True, True, True, False]
"""Rows of ratios (2, 1/2), none, (8, 1/4), (1, and 3 that does not count): s = 1, -, 2, 1; g = 1, -, sqrt 2, 1."""


def step(ratios: list[float] = RATIOS, lengths: list[int] = LENGTHS, mask: list[bool] = MASK, of: str = "old") -> Rows:
    """Tokens with these ratios of the policy `of`; the other one differs by a factor that would show."""
    zero = torch.zeros(len(ratios))
    columns = {"old.logp": zero - 5, "now.logp": zero - 5, "sampler.logp": -torch.tensor(ratios).log()}
    return Rows({}, {**columns, f"{of}.logp": zero}, torch.tensor(lengths), torch.tensor(mask))


@pytest.mark.parametrize("of", ["old", "now"])
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.5, 5.0, [2, 0.5, 0, 0, 1]), (0.25, 8.0, [2, 0.5, 8, 0.25, 1]), (0.6, 1.9, [0, 0, 0, 0, 1])],
)
def test_icepop_keeps_weights_between_its_bounds(low: float, high: float, expected: list[float], of: Any) -> None:
    weight, metrics = icepop(step(of=of), low=low * 0.999, high=high * 1.001, numerator=of)
    assert weight[:5].tolist() == pytest.approx(expected)
    assert metrics["correction_cut_frac"][:5].tolist() == [float(value == 0) for value in expected]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("none", [1, 1, 1, 1, 1]),
        ("token", [1.5, 0.5, 1.5, 0.25, 1]),
        ("sequence", [1, 1, 1.5, 1.5, 1]),
        ("geometric", [1, 1, math.sqrt(2), math.sqrt(2), 1]),
    ],
)
@pytest.mark.parametrize("of", ["old", "now"])
def test_weights_are_cut_off_at_every_level(level: Any, expected: list[float], of: Any) -> None:
    assert truncated(step(of=of), level=level, cap=1.5, numerator=of)[0][:5].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 0, 0, 1]),
        ({"by": "geometric", "low": 0.9, "high": 1.5}, [1, 1, 1, 1, 1]),
        ({"by": "sequence", "low": 0.5, "high": 1.9}, [1, 1, 0, 0, 1]),
        ({"by": "sequence", "low": 0.5, "high": 2.1, "level": "sequence"}, [1, 1, 2, 2, 1]),
        ({"by": "sequence", "low": 1.5, "high": 2.1, "level": "token", "cap": 4.0}, [0, 0, 4, 0.25, 0]),
        # k3: row 0 (2 - 1 - ln 2 + 1/2 - 1 + ln 2) / 2 = 1/4; row 2 (8 - 1 + 1/4 - 1 - ln 2) / 2 = 2.78; row 3: 0.
        ({"by": "k3", "low": 0.0, "high": 0.26}, [1, 1, 0, 0, 1]),
        ({"by": "k3", "low": 0.0, "high": 0.24, "level": "token"}, [0, 0, 0, 0, 1]),
        ({"by": "k3", "low": 0.0, "high": 2.8, "level": "geometric"}, [1, 1, math.sqrt(2), math.sqrt(2), 1]),
        ({"by": "k3", "low": 0.0, "high": 2.7}, [1, 1, 0, 0, 1]),
    ],
)
def test_completions_outside_the_bounds_are_left_out_whole(settings: Any, expected: list[float]) -> None:
    weight, metrics = rejection(step(), **settings)
    assert weight[:5].tolist() == pytest.approx(expected)
    assert metrics["correction_rejected_frac"][:5].tolist() == [float(value == 0) for value in expected]


def test_the_policy_of_the_step_is_compared_if_asked_for() -> None:
    assert rejection(step(of="now"), numerator="now")[0][:5].tolist() == [1, 1, 0, 0, 1]
    assert rejection(step(of="now"))[0].tolist() == [0.0] * 6


@given(st.lists(st.floats(-4, 4), min_size=1, max_size=8), st.sampled_from(["none", "token", "sequence", "geometric"]))
def test_the_policys_own_rollouts_are_all_kept_and_weigh_one(values: list[float], level: Any) -> None:
    logp = torch.tensor(values)
    rows = Rows({}, {f"{who}.logp": logp for who in ("now", "old", "sampler")}, torch.tensor([len(values)]))
    for by, low in (("geometric", 0.999), ("sequence", 0.5), ("k3", 0.0)):
        found: Any = by
        assert rejection(rows, by=found, low=low, level=level)[0].tolist() == [1.0] * len(values)
    assert icepop(rows)[0].tolist() == truncated(rows, level=level)[0].tolist() == [1.0] * len(values)


def test_weights_carry_no_gradient_and_never_overflow() -> None:
    logp = torch.tensor([500.0], requires_grad=True)
    columns = {"now.logp": logp, "old.logp": torch.zeros(1), "sampler.logp": torch.zeros(1)}
    weight = truncated(Rows({}, columns, torch.tensor([1])), level="sequence", cap=1e9, numerator="now")[0]
    assert not weight.requires_grad
    assert float(weight) == pytest.approx(math.exp(10), rel=1e-4)
