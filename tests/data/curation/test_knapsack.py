"""Knapsack RL: allocations against brute force, and the wave that asks for the rest of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.curation.candidates import candidates
from gradus.data.curation.round import round_of
from gradus.data.curation.waves.allocation import best_counts, knapsack


def worth(rate: float, num: int) -> float:
    """The chance that both outcomes are among `num` rollouts, times p (1 - p)^2, as the paper has it."""
    return (1 - rate**num - (1 - rate) ** num) * rate * (1 - rate) ** 2


def found(rate: Sequence[float], low: Sequence[int], high: Sequence[int], budget: int) -> list[int]:
    return best_counts(np.array(rate), np.array(low), np.array(high), budget).tolist()


def test_by_hand() -> None:
    # p = 1/2 gains 1/8 (2 / 2^(n + 1)): 1/16 of a second rollout, 1/32, 1/64; p = 1/4 gains 9/64 (3/8, 3/16, 15/128).
    # The largest four of 0.0625, 0.03125, 0.015625 and 0.05273, 0.02637, 0.01648 are two of each.
    assert found([0.5, 0.25], [1, 1], [9, 9], 6) == [3, 3]
    assert found([0.5, 0.25], [1, 1], [9, 9], 7) == [3, 4]


@given(st.data(), st.integers(1, 4), st.integers(0, 16))
@settings(max_examples=60, deadline=None)
def test_no_other_allocation_is_worth_more(data: st.DataObject, num: int, budget: int) -> None:
    rate = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0]), min_size=num, max_size=num))
    low = data.draw(st.lists(st.integers(1, 3), min_size=num, max_size=num))
    high = [each + data.draw(st.integers(0, 4)) for each in low]
    counts = found(rate, low, high, budget)
    total = min(max(budget, sum(low)), sum(high))
    ranges = [range(least, most + 1) for least, most in zip(low, high, strict=True)]
    assert sum(counts) == total
    assert all(count in each for count, each in zip(counts, ranges, strict=True))
    best = max(sum(map(worth, rate, each)) for each in product(*ranges) if sum(each) == total)
    assert sum(map(worth, rate, counts)) == pytest.approx(best, abs=1e-12)


def test_what_nobody_else_can_use_goes_to_problems_of_a_certain_outcome() -> None:
    assert found([0.5, 0.0, 1.0], [2, 2, 2], [4, 8, 8], 6) == [2, 2, 2]
    assert found([0.5, 0.0, 1.0], [2, 2, 2], [4, 8, 8], 9) == [4, 3, 2]
    assert found([0.5, 0.0, 1.0], [2, 2, 2], [4, 8, 8], 12) == [4, 4, 4]


def test_a_wave_plans_the_rest_by_the_last_pass_rates() -> None:
    # The last of a is 1/2 whatever came before, c was never measured, b was always solved: 12 - 6 go to a and c alike.
    rows = pa.table({"problem_id": list("aabbcc"), "group": [0, 0, 1, 1, 2, 2]})
    problems = pa.table({"problem_id": list("dcba"), "question": list("dcba")})
    known = {"problem_id": list("ab"), "n": [4, 2], "k": [1, 2], "history": [[0.0, 0.5], [1.0]]}
    asked = replace(round_of(rows, problems), candidates=candidates(problems, pa.table(known)))
    plan = knapsack(asked, np.random.default_rng(0), mean=4.0)
    assert plan is not None
    columns = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert (plan.problem_id.to_pylist(), columns["group"], columns["n"]) == (["a", "c"], ["0", "2"], [3, 3])
    assert columns["reason"] == ["3 more at pass rate 0.500"] * 2
    bounded = knapsack(asked, np.random.default_rng(0), mean=4.0, most=4)
    assert bounded is not None
    assert bounded.columns["n"].to_pylist() == [2, 2, 2]  # b takes what a and c may not
    nothing = knapsack(asked, np.random.default_rng(0), mean=1.0)
    assert nothing is not None
    assert nothing.num_rows == 0
