"""Advantages against numbers worked out by hand, a naive implementation, and the properties that all of them share."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.models.objectives.advantages.difficulty import dgpo
from gradus.models.objectives.advantages.group_relative import dr_grpo, grpo, rloo
from gradus.models.objectives.rows import ColumnError, Rows

NAN = math.nan
ADVANTAGES = {"dr_grpo": dr_grpo, "grpo": grpo, "rloo": rloo}
NAMES = sorted(ADVANTAGES)
reward_lists = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, 0.1, 1e-9, NAN]), st.floats(-10, 10)), min_size=1, max_size=24
)


def batch(reward: list[float], group: list[int]) -> Rows:
    return Rows({"reward": torch.tensor(reward, dtype=torch.float64), "group": torch.tensor(group)})


def naive(name: str, reward: list[float], group: list[int], eps: float = 1e-4) -> list[float]:
    """The definitions, one row at a time, with the standard library."""
    result: list[float] = []
    for own, mine in zip(reward, group, strict=True):
        peers = [r for r, g in zip(reward, group, strict=True) if g == mine and not math.isnan(r)]
        if math.isnan(own) or len(peers) < 2 or len(set(peers)) == 1:
            result.append(0.0)
        elif name == "rloo":
            others = peers.copy()
            others.remove(own)
            result.append(own - statistics.fmean(others))
        else:
            centred = own - statistics.fmean(peers)
            result.append(centred / (statistics.stdev(peers) + eps) if name == "grpo" else centred)
    return result


def test_values_worked_out_by_hand() -> None:
    scored = batch([1, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    # Group 0: mean 1/4, squares 9/16 + 3/16, ddof 1: std 1/2. Group 1: mean 1/2, std sqrt(1/3).
    third = math.sqrt(1 / 3)
    assert grpo(scored, std_eps=0.0).tolist() == pytest.approx(
        [1.5, -0.5, -0.5, -0.5, 0.5 / third, 0.5 / third, -0.5 / third, -0.5 / third], abs=1e-15
    )
    assert grpo(scored, std_eps=0.5)[:4].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert grpo(scored)[0].item() == pytest.approx(0.75 / 0.5001, abs=1e-15)
    assert dr_grpo(scored).tolist() == [0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5]
    assert rloo(scored).tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, 2 / 3, 2 / 3, -2 / 3, -2 / 3], abs=1e-15)


def test_the_std_of_grpo_is_the_samples_or_the_populations() -> None:
    # Mean 1/4, squares 3/4: over 4 the std is sqrt(3)/4, over 3 it is 1/2.
    scored = batch([1, 0, 0, 0, 0.7, 0.2, 0.2], [0, 0, 0, 0, 1, 2, 2])
    root = math.sqrt(3)
    found = grpo(scored, std_eps=0.0, ddof=0)
    assert found.tolist() == pytest.approx([root, -1 / root, -1 / root, -1 / root, 0, 0, 0], abs=1e-15)
    assert grpo(scored, std_eps=0.25, ddof=0)[0].item() == pytest.approx(0.75 / (root / 4 + 0.25))
    assert grpo(scored, ddof=1).tolist() == grpo(scored).tolist()


@given(rewards=st.lists(st.floats(-10, 10), min_size=2, max_size=9))
@settings(max_examples=40)
def test_the_two_stds_differ_by_the_root_of_n_over_n_minus_1(rewards: list[float]) -> None:
    scored, factor = batch(rewards, [0] * len(rewards)), math.sqrt(len(rewards) / (len(rewards) - 1))
    sample, population = grpo(scored, std_eps=0.0), grpo(scored, std_eps=0.0, ddof=0)
    assert population.tolist() == pytest.approx((sample * factor).tolist())


def test_the_mean_absolute_deviation_is_that_of_dgpo_at_temperature_0() -> None:
    # 3, 0, 0: mean 1, deviations 2, 1, 1 of mean 4/3.
    scored = batch([3, 0, 0], [0, 0, 0]).adding({"correct": torch.tensor([1.0, 0.0, 0.0])})
    assert dgpo(scored, temperature=0.0, mad_eps=0.0).tolist() == pytest.approx([1.5, -0.75, -0.75])


def test_rloo_compares_with_the_others() -> None:
    # 3 against the mean of 1 and 2; 1 against 2.5; 2 against 2.
    assert rloo(batch([3, 1, 2], [0] * 3)).tolist() == pytest.approx([1.5, -1.5, 0.0])


def test_groups_do_not_mix() -> None:
    assert dr_grpo(batch([1, 10, 0, 20], [0, 1, 0, 1])).tolist() == [0.5, -5.0, -0.5, 5.0]


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_one_constant_groups_and_unjudged_rows_get_zero(name: str) -> None:
    # 0.1 three times: its floating-point mean is not 0.1, and dividing by a std of almost nothing would show it.
    scored = batch([0.7, 0.1, 0.1, 0.1, NAN, 1.0, NAN, 1.0, 0.0], [0, 1, 1, 1, 2, 2, 3, 3, 3])
    found = ADVANTAGES[name](scored)
    assert found[:7].tolist() == [0.0] * 7
    assert found[7].item() == -found[8].item() > 0
    assert found.dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 9))
@settings(max_examples=40)
def test_a_constant_group_gets_exactly_nothing(name: str, value: float, size: int) -> None:
    assert ADVANTAGES[name](batch([value] * size, [0] * size)).tolist() == [0.0] * size


@pytest.mark.parametrize("name", NAMES)
def test_an_unjudged_row_changes_nothing_for_its_group(name: str) -> None:
    with_gap = ADVANTAGES[name](batch([1, NAN, 0, 0], [0, 0, 0, 0]))
    without = ADVANTAGES[name](batch([1, 0, 0], [0, 0, 0]))
    assert with_gap[[0, 2, 3]].tolist() == without.tolist()


@pytest.mark.parametrize("name", NAMES)
@given(rewards=reward_lists, data=st.data())
@settings(max_examples=50)
def test_properties(name: str, rewards: list[float], data: st.DataObject) -> None:
    group = data.draw(st.lists(st.integers(0, 4), min_size=len(rewards), max_size=len(rewards)))
    order = data.draw(st.permutations(range(len(rewards))))
    scored = batch(rewards, group)
    found = ADVANTAGES[name](scored)
    assert found.tolist() == pytest.approx(naive(name, rewards, group), rel=1e-6, abs=1e-9)
    assert scored.by("group").sum(found).abs().max().item() < 1e-9
    shuffled = ADVANTAGES[name](batch([rewards[i] for i in order], [group[i] for i in order]))
    assert shuffled.tolist() == pytest.approx(found[list(order)].tolist(), rel=1e-6, abs=1e-9)


def test_a_column_that_does_not_fit_the_rows_is_refused() -> None:
    with pytest.raises(ColumnError, match="column group does not fit 3 rows"):
        Rows({"reward": torch.zeros(3), "group": torch.zeros(2)})
