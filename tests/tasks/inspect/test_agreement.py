"""Cohen's kappa by hand, against scikit-learn, and its interval against the formula for independent rows."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from gradus.tasks.inspect.agreement.numbers import change_of, counts_of, kappa, kappa_interval


def verdicts(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return two judges' verdicts with these counts: right by both, by the first, by the second alone, by none."""
    pairs = np.repeat([(True, True), (True, False), (False, True), (False, False)], counts, axis=0)
    return pairs[:, 0], pairs[:, 1]


def test_a_table_by_hand() -> None:
    # p_o = (20 + 15) / 50 = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5, kappa = 0.2 / 0.5.
    first, second = verdicts([20, 5, 10, 15])
    assert counts_of(first, second).tolist() == [20, 5, 10, 15]
    assert float(kappa(np.array([20, 5, 10, 15]))) == pytest.approx(0.4)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_it_is_that_of_scikit_learn_and_symmetric(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(each) for each in zip(*pairs, strict=True))
    found = float(kappa(counts_of(first, second)))
    assert found == pytest.approx(float(kappa(counts_of(second, first))), nan_ok=True)
    if len({*first, *second}) == 1:
        assert np.isnan(found)  # scikit-learn warns there
    else:
        assert found == pytest.approx(cohen_kappa_score(first, second))


def test_the_interval_of_independent_rows_is_that_of_fleiss_cohen_and_everitt() -> None:
    """Psychological Bulletin 72, 1969, for large samples."""
    counts = np.array([400, 60, 90, 450])
    first, second = verdicts(counts.tolist())
    p = (counts / counts.sum()).reshape(2, 2)
    row, column = p.sum(axis=1), p.sum(axis=0)
    equal, chance = np.trace(p), row @ column
    k = (equal - chance) / (1 - chance)
    a = sum(p[i, i] * (1 - (row[i] + column[i]) * (1 - k)) ** 2 for i in range(2))
    b = (1 - k) ** 2 * sum(p[i, j] * (column[i] + row[j]) ** 2 for i in range(2) for j in range(2) if i != j)
    error = np.sqrt((a + b - (k - chance * (1 - k)) ** 2) / (1 - chance) ** 2 / counts.sum())
    found = kappa_interval(first, second, np.arange(len(first)))
    assert found is not None
    assert found["value"] == pytest.approx(k)
    assert (found["low"], found["high"]) == pytest.approx((k - 1.962 * error, k + 1.962 * error), abs=2e-3)


def test_rows_of_a_problem_are_no_independent_evidence() -> None:
    first, second = verdicts([20, 5, 10, 15])
    alone = kappa_interval(first, second, np.arange(50))
    repeated = kappa_interval(np.tile(first, 4), np.tile(second, 4), np.tile(np.arange(50), 4))
    apart = kappa_interval(np.tile(first, 4), np.tile(second, 4), np.arange(200))
    assert alone is not None
    assert repeated is not None
    assert apart is not None
    assert (repeated["low"], repeated["high"]) == pytest.approx((alone["low"], alone["high"]))
    assert apart["low"] > repeated["low"]


def test_where_kappa_or_its_interval_is_not_defined() -> None:
    right = np.ones(5, dtype=np.bool_)
    assert kappa_interval(right, right, np.arange(5)) is None
    first, second = verdicts([3, 1, 1, 3])
    alone = kappa_interval(first, second, np.zeros(8, dtype=np.int64))
    assert alone is not None
    assert alone == {"value": pytest.approx(0.5), "low": -1.0, "high": 1.0}


def test_the_change_is_where_the_least_squares_are_with_the_p_value_of_all_permutations() -> None:
    share, round_ = np.array([0.0, 0.25, 0.0, 0.75, 0.5, 1.0]), np.array([1, 1, 2, 2, 3, 3])

    def largest(values: tuple[float, ...]) -> float:
        """Over the splits, (mean after - mean before) / sqrt(1 / n_before + 1 / n_after)."""
        cuts = [(values[:cut], values[cut:]) for cut in (2, 4)]
        return max((np.mean(b) - np.mean(a)) / np.sqrt(1 / len(a) + 1 / len(b)) for a, b in cuts)

    found = change_of(share, round_)
    assert found is not None
    assert (found["round"], found["before"], found["after"]) == (3, 0.25, 0.75)
    every = [largest(each) >= largest(tuple(share)) - 1e-9 for each in permutations(share)]
    # Five standard errors of a share over 1,999 draws.
    assert found["p"] == pytest.approx(np.mean(every), abs=5 * np.sqrt(np.mean(every) / 1999))
    shuffled = np.array([3, 0, 5, 1, 4, 2])
    again = change_of(share[shuffled], round_[shuffled])
    assert again is not None
    assert (again["round"], again["before"], again["after"]) == (3, 0.25, 0.75)


def test_certain_none_and_falling_changes() -> None:
    round_ = np.repeat([1, 2, 3], 8)
    opened = change_of(np.repeat([0.0, 0.0, 1.0], 8), round_)
    assert opened == {"round": 3, "before": 0.0, "after": 1.0, "p": 1 / 2000}
    assert change_of(np.zeros(24), round_) is None
    assert change_of(np.repeat([1.0, 0.5, 0.0], 8), round_) is None
    assert change_of(np.array([0.0, 1.0]), np.array([1, 1])) is None


@pytest.mark.slow
def test_a_hole_that_is_used_more_and_more_is_named_where_it_opens() -> None:
    """The best split alone is where most is won: from 5 on."""
    share, round_ = np.repeat([0.0, 0.0, 0.125, 0.125, 0.75, 0.75], 12), np.repeat(np.arange(1, 7), 12)
    for seed in range(5):  # whatever the order of the groups
        order = np.random.default_rng(seed).permutation(72)
        found = change_of(share[order], round_[order])
        assert found == {"round": 3, "before": 0.0, "after": 0.4375, "p": 1 / 2000}


def drawn(rng: np.random.Generator, hole: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Twelve rounds of sixteen groups of eight: 2 % of the verdicts differ, about 15 % once a hole opens."""
    round_ = np.repeat(np.arange(1, 13), 16)
    rate = np.where((hole is not None) & (round_ >= (hole or 0)), rng.beta(0.6, 3.4, len(round_)), 0.02)
    return rng.binomial(8, rate) / 8, round_


@pytest.mark.slow
def test_planted_holes_are_named_within_a_round_and_clean_runs_seldom() -> None:
    rng = np.random.default_rng(5)
    num = 100
    alarms = [change_of(*drawn(rng, None)) for _ in range(num)]
    assert sum(each is not None and each["p"] <= 0.05 for each in alarms) <= 0.05 * num + 3 * np.sqrt(0.05 * 0.95 * num)
    holes = rng.integers(3, 12, num)
    named = [change_of(*drawn(rng, int(hole))) for hole in holes]
    right = [
        found is not None and found["p"] <= 0.05 and abs(found["round"] - hole) <= 1
        for found, hole in zip(named, holes, strict=True)
    ]
    assert np.mean(right) >= 0.95
