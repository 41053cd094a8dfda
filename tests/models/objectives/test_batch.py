"""Advantages by statistics of the batch, by hand and against a plain form with NumPy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.models.objectives.advantages.batch import lite_ppo, opo, reinforce_plus_plus, reinforce_plus_plus_baseline
from gradus.models.objectives.rows import Rows

NAN = math.nan
ALL = {f.__name__: f for f in (lite_ppo, opo, reinforce_plus_plus, reinforce_plus_plus_baseline)}
ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 0.1, 0.7, NAN]), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=20
)


def batch(reward: list[float], group: list[int] | None = None, length: list[int] | None = None) -> Rows:
    return Rows(
        {
            "reward": torch.tensor(reward, dtype=torch.float64),
            "group": torch.tensor(group or [0] * len(reward)),
            "length": torch.tensor(length or [1] * len(reward)),
        }
    )


def test_reinforce_plus_plus_by_hand() -> None:
    # Four of eight are right, whatever the group: mean 1/2, squares 8 / 4, std sqrt(2 / 7).
    found = reinforce_plus_plus(batch([1, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1]), std_eps=0.0)
    half = 0.5 / math.sqrt(2 / 7)
    assert found.tolist() == pytest.approx([half, -half, -half, -half, half, half, half, -half])
    # As tokens: 1, 1, 1, 0 with mean 3/4 and squares 3/16 + 9/16, std sqrt(3/4 / 3) = 1/2; the eps is added to it.
    by_token = reinforce_plus_plus(batch([1, 0], length=[3, 1]), over="token", std_eps=0.0)
    assert by_token.tolist() == pytest.approx([0.5, -1.5])
    assert reinforce_plus_plus(batch([1, 0], length=[3, 1]), over="token", std_eps=0.5).tolist() == [0.25, -0.75]


def test_a_group_of_one_has_an_advantage_over_the_batch_alone() -> None:
    # 1, 0 in two groups: mean 1/2, std sqrt(1/2); less their own group's mean nothing is left.
    lone = batch([1, 0], [0, 1])
    assert reinforce_plus_plus(lone, std_eps=0.0).tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    for method in (reinforce_plus_plus_baseline, lite_ppo, opo):
        assert method(lone).tolist() == [0.0, 0.0]


def test_the_group_mean_then_the_batch_by_hand() -> None:
    # Less 1/4: 3/4, -1/4 three times. Group 1 is constant: 0 twice. Squares 12/16 over 5: std sqrt(0.15).
    scored = batch([1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1])
    wanted = [0.75, -0.25, -0.25, -0.25, 0, 0]
    found = reinforce_plus_plus_baseline(scored, std_eps=0.0)
    assert found.tolist() == pytest.approx([value / math.sqrt(0.15) for value in wanted])
    # Lite PPO divides by the std of the rewards themselves: three of six are right, squares 6 / 4, std sqrt(0.3).
    lite = lite_ppo(scored, std_eps=0.0)
    assert lite.tolist() == pytest.approx([value / math.sqrt(0.3) for value in wanted])
    assert lite_ppo(scored, std_eps=1.0)[0].item() == pytest.approx(0.75 / (1 + math.sqrt(0.3)))
    # By token: 1/2 of three tokens and -1/2 of one have mean 1/4; squares 3/16 + 9/16, std 1/2.
    by_token = reinforce_plus_plus_baseline(batch([1, 0], length=[3, 1]), over="token", std_eps=0.0)
    assert by_token.tolist() == pytest.approx([0.5, -1.5])


def test_opo_weighs_the_baseline_by_length() -> None:
    # (10 * 1 + 30 * 0) / 40 = 1/4; then (2 * 1 + 1 * 4) / 3 = 2; an empty row counts nothing but has a reward.
    found = opo(batch([1, 0, 1, 4, 0], [0, 0, 1, 1, 1], [10, 30, 2, 1, 0]))
    assert found.tolist() == pytest.approx([0.75, -0.25, -1, 2, -2])
    assert opo(batch([1, 0], length=[0, 0])).tolist() == [1.0, 0.0]  # no tokens at all: no baseline, no loss either


@pytest.mark.parametrize("name", ALL)
def test_rows_without_a_reward_count_nowhere(name: str) -> None:
    alone = ALL[name](batch([1, 0, 0, 0, 1], [0, 0, 0, 1, 1], [3, 1, 2, 5, 1]))
    with_others = batch([1, 0, NAN, 0, NAN, 0, 1], [0, 0, 0, 0, 0, 1, 1], [3, 1, 7, 2, 4, 5, 1])
    found = ALL[name](with_others)
    assert found[[0, 1, 3, 5, 6]].tolist() == pytest.approx(alone.tolist())
    assert (found[[2, 4]].tolist(), found.dtype) == ([0.0, 0.0], torch.float64)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reward", [[0.1, 0.1, 0.1], [NAN, NAN, NAN], [NAN, 0.3, NAN], [0.7]])
def test_equal_rewards_or_none_have_exactly_nothing(name: str, reward: list[float]) -> None:
    assert ALL[name](batch(reward)).tolist() == [0.0] * len(reward)


def plain(name: str, rows: list[tuple[float, int, int]]) -> list[float]:
    """The definitions in NumPy, without guards but for equal values."""
    reward, group, length = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    known = ~np.isnan(reward)
    base = np.zeros(len(rows))
    for number in set(group[known]):
        own = known & (group == number)
        weight = length[own] if name == "opo" else np.ones(own.sum())
        equal = len(set(reward[own])) == 1
        mean = (weight * reward[own]).sum() / max(weight.sum(), 1)
        base[own] = reward[own] if equal else mean
    values = reward if name == "reinforce_plus_plus" else reward - base
    if name != "opo" and known.sum() > 1:
        spread = reward if name == "lite_ppo" else values
        std = 0 if len(set(spread[known])) == 1 else np.std(spread[known], ddof=1)
        values = (values - (0 if name == "lite_ppo" else values[known].mean())) / (std + 0.5)
    elif name == "reinforce_plus_plus":
        values = values * 0
    return np.nan_to_num(values).tolist()


@pytest.mark.parametrize("name", ALL)
@given(rows=ROWS, data=st.data())
@settings(max_examples=60)
def test_properties(name: str, rows: list[tuple[float, int, int]], data: st.DataObject) -> None:
    def found(rows: list[tuple[float, int, int]]) -> list[float]:
        reward, group, length = (list(column) for column in zip(*rows, strict=True))
        extra: dict[str, Any] = {} if name == "opo" else {"std_eps": 0.5}
        return ALL[name](batch(reward, group, length), **extra).tolist()

    assert found(rows) == pytest.approx(plain(name, rows), abs=1e-9)
    order = data.draw(st.permutations(range(len(rows))))
    assert found([rows[at] for at in order]) == pytest.approx([found(rows)[at] for at in order], abs=1e-12)
    if name != "opo":
        assert sum(found(rows)) == pytest.approx(0, abs=1e-9)
