"""Tokens spent on groups: by hand, and against all ways to spend them."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.curation.surface.spending import spend

NONE = float("nan")


def test_tokens_go_where_they_make_most_groups() -> None:
    value = np.array([[0.5, 0.9], [0.8, 0.85], [0.1, NONE]])
    cost = np.array([[10.0, 20.0], [10.0, 40.0], [10.0, NONE]])
    assert spend(value, cost, 9).tolist() == [-1, -1, -1]
    assert spend(value, cost, 10).tolist() == [-1, 0, -1]  # 0.08 a token, then 0.05, 0.04, 0.01 and 0.05 / 30
    assert spend(value, cost, 20).tolist() == [0, 0, -1]
    assert spend(value, cost, 30).tolist() == [1, 0, -1]
    assert spend(value, cost, 40).tolist() == [1, 0, 0]
    assert spend(value, cost, 70).tolist() == [1, 1, 0]
    assert spend(value, cost, 1e9).tolist() == [1, 1, 0]


def test_of_problems_that_are_alike_as_many_are_taken_as_fit() -> None:
    assert spend(np.full((5, 1), 0.5), np.full((5, 1), 10.0), 35).tolist() == [0, 0, 0, -1, -1]


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 30)), min_size=2, max_size=2), min_size=1, max_size=4
    ),
    st.integers(0, 90),
)
def test_no_way_to_spend_them_is_better_by_more_than_one_option(
    options: list[list[tuple[float, int]]], budget: int
) -> None:
    value = np.array([[each[0] for each in row] for row in options])
    cost = np.array([[float(each[1]) for each in row] for row in options])

    def both(chosen: tuple[int, ...]) -> tuple[float, float]:
        pairs = [(value[at, each], cost[at, each]) for at, each in enumerate(chosen) if each >= 0]
        return sum(v for v, _ in pairs), sum(c for _, c in pairs)

    found = both(tuple(spend(value, cost, budget).tolist()))
    best = max(
        made for each in product((-1, 0, 1), repeat=len(options)) for made, paid in [both(each)] if paid <= budget
    )
    assert found[1] <= budget
    assert best - value.max() <= found[0] + 1e-9 <= best + 2e-9
