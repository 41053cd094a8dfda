"""Metrics against enumeration: every subset, every vote counted by hand."""

from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.metrics import majority_at_k, pass_at_k, zero_std_groups


def test_pass_at_k_of_hand_computed_cases() -> None:
    # 1 - C(8,2)/C(10,2) = 1 - 28/45; 1 - C(7,4)/C(8,4) = 1 - 35/70
    assert pass_at_k(np.array([10]), np.array([2]), 2)[0] == pytest.approx(17 / 45, abs=1e-15)
    assert pass_at_k(np.array([8]), np.array([1]), 4)[0] == pytest.approx(0.5, abs=1e-15)
    np.testing.assert_array_equal(pass_at_k(np.array([8, 8, 8]), np.array([0, 8, 6]), 3), [0.0, 1.0, 1.0])


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
@settings(max_examples=50)
def test_pass_at_k_equals_the_share_of_subsets_with_a_right_sample(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(share, abs=1e-12)


def test_pass_at_k_is_stable_where_binomials_overflow() -> None:
    n, c, k = 5000, 3, 1000
    exact = 1 - comb(n - c, k) / comb(n, k)
    assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(exact, rel=1e-12)


def test_pass_at_1_is_the_pass_rate() -> None:
    n, c = np.array([8, 5, 3]), np.array([3, 5, 0])
    np.testing.assert_allclose(pass_at_k(n, c, 1), c / n, atol=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(np.array([8, n]), np.array([1, c]), k)


def _votes(rows: list[tuple[int, int, str | None, bool]], num_problems: int, k: int) -> list[float]:
    """The definition, one problem at a time, with Python's Counter."""
    shares = []
    for problem in range(num_problems):
        mine = sorted((r for r in rows if r[0] == problem), key=lambda r: r[1])[: k or None]
        count = Counter("right" if r[3] else f"wrong {r[2]}" for r in mine if r[2] is not None)
        top = [a for a, c in count.items() if c == max(count.values())]
        shares.append(("right" in top) / len(top) if top else 0.0)
    return shares


def _majority(rows: list[tuple[int, int, str | None, bool]], num_problems: int, k: int) -> list[float]:
    answers = sorted({r[2] for r in rows if r[2] is not None})
    return majority_at_k(
        np.array([r[0] for r in rows], dtype=np.int64),
        np.array([r[1] for r in rows], dtype=np.int64),
        np.array([-1 if r[2] is None else answers.index(r[2]) for r in rows], dtype=np.int64),
        np.array([r[3] for r in rows], dtype=np.bool_),
        num_problems=num_problems,
        k=k,
    ).tolist()


def test_majority_counts_ties_abstentions_and_spellings() -> None:
    rows = [
        (0, 0, "7", False), (0, 1, "0.5", True), (0, 2, "1/2", True),  # two spellings of the right answer win 2 to 1
        (1, 0, "7", False), (1, 1, "8", True),  # a tie
        (2, 0, None, False), (2, 1, None, False),  # nobody votes
        (3, 0, None, False), (3, 1, "4", True), (3, 2, None, False),  # one vote decides
    ]  # fmt: skip
    assert _majority(rows, 5, 0) == [1.0, 0.5, 0.0, 1.0, 0.0]
    assert _majority(rows, 5, 1) == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert _majority(rows[::-1], 5, 2) == [0.5, 0.5, 0.0, 1.0, 0.0]  # first by sample, not by row


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "c", None]), st.booleans()), max_size=20),
    st.integers(0, 5),
)
@settings(max_examples=50)
def test_majority_equals_counting(drawn: list[tuple[int, str | None, bool]], k: int) -> None:
    # A right completion has an answer, and the sample index is unique within its problem.
    rows = [(p, i, a, right and a is not None) for i, (p, a, right) in enumerate(drawn)]
    assert _majority(rows, 4, k) == pytest.approx(_votes(rows, 4, k))


def test_groups_without_variance_by_hand() -> None:
    # Group 0 has one reward, 1 equal ones, 2 one reward beside a failure, 3 two that differ, 4 failures alone.
    reward = np.array([0.7, 0.1, 0.1, 0.1, np.nan, 1.0, np.nan, 1.0, 0.0, np.nan])
    group = np.array([0, 1, 1, 1, 2, 2, 3, 3, 3, 4])
    assert zero_std_groups(reward, group).tolist() == [True, True, True, False, True]
    assert zero_std_groups(reward[:0], group[:0]).tolist() == []
