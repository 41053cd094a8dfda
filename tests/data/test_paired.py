"""Intervals over seeds and problems against every resample, and against SciPy; bands and wins by hand."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn
from scipy import stats

from gradus.data.metrics import bootstrap_mean
from gradus.data.paired import BANDS, bootstrap_crossed, difficulty_band, sole_winners

VALUES = np.array([[0.0, 1.0], [0.25, -0.5]])


def every_mean(values: np.ndarray) -> np.ndarray:
    """The mean of every resample of rows and of columns, each as often as it can be drawn."""
    rows, columns = (list(product(range(n), repeat=n)) for n in values.shape)
    return np.sort([values[np.ix_(r, c)].mean() for r in rows for c in columns])


@pytest.mark.parametrize("confidence", [0.95, 0.8, 0.6])
def test_the_interval_is_that_of_every_resample(confidence: float) -> None:
    found = bootstrap_crossed(VALUES, np.random.default_rng(0), resamples=100_000, confidence=confidence)
    means = every_mean(VALUES)
    assert len(means) == 16
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    assert (found.value, found.low, found.high) == pytest.approx((0.1875, low, high))


def test_the_extremes_are_reached_if_all_seeds_and_problems_drawn_are_one() -> None:
    found = bootstrap_crossed(VALUES, np.random.default_rng(1), resamples=10_000, confidence=0.95)
    assert (found.low, found.high) == (-0.5, 1.0)  # each has the probability 1/16


def test_one_seed_is_the_bootstrap_over_problems() -> None:
    values = np.random.default_rng(5).integers(-8, 9, size=60) / 8
    found = bootstrap_crossed(values[None], np.random.default_rng(2), resamples=40_000, confidence=0.9)
    scipys = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, confidence_level=0.9, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((scipys.low, scipys.high), abs=0.01)
    ours = bootstrap_mean(values, np.random.default_rng(4), resamples=40_000, confidence=0.9)
    assert (found.low, found.high) == pytest.approx((ours.low, ours.high), abs=0.01)


def test_seeds_that_disagree_widen_the_interval() -> None:
    rng = np.random.default_rng(6)
    problems = rng.normal(size=(1, 200))
    agreeing, apart = np.repeat(problems, 3, axis=0), problems + np.array([[-0.5], [0.0], [0.5]])
    widths = [
        (found := bootstrap_crossed(each, np.random.default_rng(7), resamples=4000, confidence=0.95)).high - found.low
        for each in (agreeing, apart)
    ]
    assert widths[1] > 2 * widths[0]


@given(hn.arrays(np.float64, hn.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1, 1)))
@settings(max_examples=60, deadline=None)
def test_an_interval_holds_its_value_and_stays_within_the_values(values: np.ndarray) -> None:
    found = bootstrap_crossed(values, np.random.default_rng(0), resamples=50, confidence=0.95)
    assert found.low <= found.value <= found.high
    assert values.min() - 1e-9 <= found.low
    assert found.high <= values.max() + 1e-9


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 0)), np.zeros(3), np.array([[1.0, np.nan]])])
def test_no_values_or_unknown_ones_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        bootstrap_crossed(values, np.random.default_rng(0), resamples=10, confidence=0.95)


def test_bands_and_wins_of_hand_made_rates() -> None:
    before = np.array([0.0, 0.125, 0.5, 0.875, 1.0])
    named = [BANDS[index] for index in difficulty_band(before)]
    assert named == ["never solved", "less than half", "half or more", "half or more", "always solved"]
    rate = np.array([[0.5, 0.2, 1.0, 0.3, 0.1 + 0.2], [0.5, 0.1, 0.0, 0.4, 0.3], [0.0, 0.1, 1.0, 0.4, 0.3]])
    assert sole_winners(rate).tolist() == [
        [False, True, False, False, False],
        [False, False, False, False, False],
        [False, False, False, False, False],
    ]


@given(
    hn.arrays(np.float64, hn.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.sampled_from([0, 0.5, 1]))
)
@settings(max_examples=60, deadline=None)
def test_a_problem_has_a_winner_exactly_if_the_best_rate_is_reached_once(rate: np.ndarray) -> None:
    won = sole_winners(rate).sum(axis=0)
    assert won.tolist() == [int(Counter(column)[max(column)] == 1) for column in rate.T.tolist()]
