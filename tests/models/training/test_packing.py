"""Micro-batches: every row once, within the budget, like lengths together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.models.training.packing import micro_batches


def test_a_division_worked_out_by_hand() -> None:
    # By length: 2, 3, 3, 4, 20. 3 rows of 3 fit 10 tokens, a fourth of 4 would make 16; 20 exceeds the budget alone.
    assert micro_batches([4, 3, 20, 2, 3], 10) == [[3, 1, 4], [0], [2]]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
@settings(max_examples=50, deadline=None)
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget
    flat = [lengths[i] for rows in batches for i in rows]
    assert flat == sorted(flat)


@pytest.mark.parametrize(("lengths", "budget"), [([1], 0), ([3, 0], 10)])
def test_a_budget_or_a_row_of_nothing_is_refused(lengths: list[int], budget: int) -> None:
    with pytest.raises(ValueError, match=r"holds nothing|without tokens"):
        micro_batches(lengths, budget)
