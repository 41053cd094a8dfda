"""Advantages against numbers worked out by hand, and what must hold for any group."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.advantages import ADVANTAGES, dr_grpo, grpo, rloo, zero_std_groups
from models.batch import ScoredBatch

NAN = float("nan")


def batch(reward: list[float], group: list[int]) -> ScoredBatch:
    return ScoredBatch(torch.tensor(reward, dtype=torch.float64), torch.tensor(group))


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    # Rewards 1 0 0 0: mean 1/4, squares 9/16 + 3/16 = 3/4, variance with ddof 1 is 1/4, std 1/2.
    found = grpo(batch([1, 0, 0, 0], [0] * 4), std_eps=0.0)
    assert found.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert grpo(batch([1, 0, 0, 0], [0] * 4), std_eps=0.5).tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_dr_grpo_only_centres() -> None:
    assert dr_grpo(batch([1, 0, 0, 0], [0] * 4)).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_rloo_compares_with_the_others() -> None:
    # 3 against the mean of 1 and 2; 1 against 2.5; 2 against 2.
    assert rloo(batch([3, 1, 2], [0] * 3)).tolist() == pytest.approx([1.5, -1.5, 0.0])


def test_rows_that_could_not_be_judged_leave_their_group() -> None:
    found = dr_grpo(batch([1, NAN, 0, NAN], [0, 0, 0, 1]))
    assert found.tolist() == [0.5, 0.0, -0.5, 0.0]


def test_groups_do_not_mix() -> None:
    assert dr_grpo(batch([1, 10, 0, 20], [0, 1, 0, 1])).tolist() == [0.5, -5.0, -0.5, 5.0]


def test_groups_without_variance_are_counted() -> None:
    assert zero_std_groups(batch([1, 1, 0, 1, 5], [0, 0, 1, 1, 2])).tolist() == [True, False, True]


rewards = st.lists(st.floats(-10, 10, allow_nan=False), min_size=1, max_size=8)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(groups=st.lists(rewards, min_size=1, max_size=4), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_every_advantage_sums_to_zero_in_a_group_and_moves_with_its_row(
    name: str, groups: list[list[float]], seed: int
) -> None:
    reward = [r for group in groups for r in group]
    index = [i for i, group in enumerate(groups) for _ in group]
    found = ADVANTAGES[name](batch(reward, index))
    for i in range(len(groups)):
        part = found[torch.tensor(index) == i]
        assert abs(float(part.sum())) <= 1e-6 * (1 + float(part.abs().sum()))
    order = torch.randperm(len(reward), generator=torch.Generator().manual_seed(seed))
    shuffled = ADVANTAGES[name](batch([reward[i] for i in order], [index[i] for i in order]))
    assert torch.allclose(shuffled, found[order], atol=1e-9)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_a_constant_group_gets_exactly_nothing(name: str, value: float, size: int) -> None:
    found = ADVANTAGES[name](batch([value] * size, [0] * size))
    assert found.tolist() == [0.0] * size
    assert not math.isnan(float(found.sum()))
