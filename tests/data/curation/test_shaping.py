"""Shapes of lengths, of unsure verdicts, of parts of the reward and of formats, by hand and by expectation."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.rows import Rows
from gradus.data.curation.batch import ShapeError
from gradus.data.curation.shapes.answers import ada_grpo
from gradus.data.curation.shapes.graded import log_sum, posterior, trusted
from gradus.data.curation.shapes.lengths import cosine_length, length_budget, overlong
from gradus.data.curation.shapes.verified import noisy_verdicts

NAN = np.nan


def rows(**columns: Any) -> Rows:
    return Rows({name: np.array(values, np.float64) for name, values in columns.items()})


def test_overlong_takes_up_to_one() -> None:
    # Limit 10, margin 4: nothing up to 6, a quarter for each token more, 1 from 10 on.
    found = overlong(rows(length=[3, 6, 7, 9, 10, 12], reward=[1, 1, 1, 0, 1, NAN]), limit=10, margin=4)
    assert found["reward"][:5].tolist() == [1.0, 1.0, 0.75, -0.75, 0.0]
    assert np.isnan(found["reward"][5])
    assert found["penalised_frac"].tolist() == [False, False, True, True, True, True]


def test_the_cosine_of_a_length() -> None:
    given_rows = rows(correct=[1, 1, 1, 0, 0, 0, NAN], length=[0, 50, 100, 0, 50, 120, 50], reward=[1] * 7)
    found = cosine_length(given_rows, limit=100)["reward"]
    assert found[:6].tolist() == pytest.approx([2.0, 1.5, -10.0, -10.0, -5.0, -10.0])
    assert np.isnan(found[6])
    third = cosine_length(rows(correct=[1], length=[100 / 3], reward=[1]), limit=100)["reward"]
    assert third[0] == pytest.approx(1 + (1 + math.cos(math.pi / 3)) / 2)


def test_a_budget_is_rewarded_where_it_is_met() -> None:
    found = length_budget(rows(length=[0, 50, 100, 150, 300], reward=[1, 0, 1, 0, 1]), budget=100, scale=0.4)["reward"]
    assert found.tolist() == pytest.approx([1.0, 0.2, 1.4, 0.2, 1.0])


@given(st.floats(0, 0.45), st.floats(0, 0.45), st.floats(-3, 3))
def test_verdicts_that_err_are_right_in_expectation(a: float, b: float, gradient: float) -> None:
    """Over right answers, of this summed gradient, and wrong ones, of its opposite, since scores have the mean 0."""
    verdicts = rows(correct=[1, 0, NAN])
    back = noisy_verdicts(verdicts, false_right=a, false_wrong=b)["reward"]
    forth = noisy_verdicts(verdicts, false_right=a, false_wrong=b, correction="forward")["reward"]
    assert np.isnan(back[2])
    assert np.isnan(forth[2])
    assert forth[:2].tolist() == pytest.approx([b, b - 1])
    for reward, share in ((back, 1.0), (forth, 1 - a - b)):
        of_right, of_wrong = (1 - b) * reward[0] + b * reward[1], a * reward[0] + (1 - a) * reward[1]
        assert gradient * of_right - gradient * of_wrong == pytest.approx(share * gradient, abs=1e-9)


def test_verdicts_that_say_nothing_are_refused() -> None:
    with pytest.raises(ShapeError, match="no verdict says anything"):
        noisy_verdicts(rows(correct=[1]), false_right=0.5, false_wrong=0.5)


def parts_of(*each: dict[str, float], **columns: Any) -> Rows:
    parts = np.empty(len(each), dtype=np.object_)
    parts[:] = [list(one.items()) for one in each]
    return Rows({"components": parts, **{name: np.array(values, np.float64) for name, values in columns.items()}})


def test_rewards_that_fluctuate_most_are_summed_by_their_logarithms() -> None:
    # a: mean 2, std 2, h = 1. b: mean 4, std 1, h = 1/4. The mean of both is 5/8; the row without b counts nowhere.
    rewards = parts_of({"a": 0.0, "b": 3.0}, {"a": 4.0, "b": 5.0}, {"a": 9.0}, reward=[3.0, 9.0, 9.0])
    found = log_sum(rewards)["reward"]
    assert found[:2].tolist() == pytest.approx([3.0, math.log(5) + 5])
    assert np.isnan(found[2])
    both = log_sum(rewards, weights=(2.0, 0.5), above=0.2)["reward"]
    assert both[:2].tolist() == pytest.approx([math.log(4) / 2, 2 * math.log(5) + math.log(6) / 2])
    assert log_sum(rewards, above=1.0)["reward"][:2].tolist() == [3.0, 9.0]  # above, not equal
    centred = parts_of({"a": -0.5, "b": -9.0}, {"a": 0.5, "b": -9.0}, reward=[1.0, 1.0])  # mean 0: fluctuates most
    assert log_sum(centred, above=2.0)["reward"].tolist() == pytest.approx([math.log(0.5) - 9, math.log(1.5) - 9])
    with pytest.raises(ShapeError, match="above -1"):
        log_sum(parts_of({"a": -1.0}, {"a": 1.0}, reward=[1.0, 1.0]), above=0.0)
    with pytest.raises(ShapeError, match="1 weights"):
        log_sum(parts_of({"a": 1.0, "b": 1.0}, reward=[1.0]), weights=(1.0,))
    assert np.isnan(log_sum(parts_of({"a": 1.0}, {"b": 1.0}, reward=[1.0, 1.0]))["reward"]).all()


def test_a_part_counts_for_right_rows_alone() -> None:
    thought = ({"think": 0.5}, {"think": 0.5}, {"think": 1.0})
    found = posterior(parts_of(*thought, reward=[1, 0, NAN], correct=[1, 0, 1]), part="think", scale=2.0)["reward"]
    assert found[:2].tolist() == [2.0, 0.0]
    assert np.isnan(found[2])
    with pytest.raises(ShapeError, match="no reward form; it has think"):
        posterior(parts_of(*thought, reward=[1, 0, 1], correct=[1, 0, 1]), part="form")


def test_a_part_is_trusted_as_far_as_right_rows_have_more_of_it() -> None:
    thought = tuple({"think": value} for value in (0.2, 0.8, 0.9, 0.1, 0.4))
    found_parts = parts_of(*thought, reward=[1, 0, 1, 0, 1], correct=[1, 0, 1, 0, 1])
    columns = {name: found_parts[name] for name in ("components", "reward", "correct")}
    given_rows = Rows({**columns, "group": np.array([0, 0, 1, 1, 2])})
    found = trusted(given_rows, part="think", scale=0.5)
    less = math.exp(0.2 - 0.8)
    assert found["trust"].tolist() == pytest.approx([less, less, 1.0, 1.0, 1.0])
    assert found["reward"].tolist() == pytest.approx([1 + less * 0.1, less * 0.4, 1.45, 0.05, 1.2])


def test_rare_formats_are_worth_more_until_the_end() -> None:
    columns = {
        "group": np.array([0, 0, 0, 0, 1]),
        "reward": np.array([1.0, 1.0, 0.0, 1.0, 1.0]),
        "completion": np.array(["```x```", "plain", "plain", None, "<think>```"], dtype=np.object_),
    }
    # F / G: 1/4, 3/4, 3/4, 3/4, 1. At the beginning a = G / F, at the end 1, half way (F/G + (1 - F/G) / 2) G / F.
    values = {0.0: [4.0, 4 / 3, 0.0, 4 / 3, 1.0], 0.5: [2.5, 7 / 6, 0.0, 7 / 6, 1.0], 1.0: [1.0, 1.0, 0.0, 1.0, 1.0]}
    for progress, expected in values.items():
        assert ada_grpo(Rows(columns), progress=progress)["reward"].tolist() == pytest.approx(expected)
