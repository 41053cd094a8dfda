"""Groups without variance, expected: by hand, by quadrature, by a grid, and by drawing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradus.data.arrays import Floats
from gradus.data.curation.surface.forecast import STRENGTH, Prior, fitted_prior, no_variance, some_right

UNIFORM = Prior(1.0, 1.0)
COUNTS = st.lists(st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1)


def one(n: int, k: int, size: int, prior: Prior = UNIFORM) -> float:
    return float(no_variance(np.array([n]), np.array([k]), np.array([size]), prior)[0])


def test_four_right_of_four_is_not_certain() -> None:
    # Beta(5, 1): E[p^4] = 5/9, E[(1 - p)^4] = 5 B(5, 5) = 5 * 4! 4! / 9! = 1/126
    assert one(4, 4, 4) == pytest.approx(5 / 9 + 1 / 126, rel=1e-12)
    assert one(4, 0, 4) == pytest.approx(5 / 9 + 1 / 126, rel=1e-12)
    assert one(0, 0, 8) == pytest.approx(2 / 9, rel=1e-12)  # nothing known: 1 / (G + 1) at either end
    assert one(8, 3, 1) == one(0, 0, 0) == 1.0  # one completion never varies
    assert one(2, 1, 2) == pytest.approx(0.6, rel=1e-12)  # Beta(2, 2): E[p^2] = 2 * 3 / (4 * 5) = 0.3, twice


def test_never_right_in_eight_may_be_right_in_the_next() -> None:
    solved = some_right(np.array([8, 0]), np.array([0, 0]), 8, UNIFORM)
    assert solved == pytest.approx([8 / 17, 8 / 9], rel=1e-12)  # E[(1 - p)^8] = 9/17 under Beta(1, 9), 1/9 before


@given(COUNTS, st.integers(1, 64), st.floats(0.05, 20), st.floats(0.05, 20))
def test_chances_are_chances_and_right_and_wrong_are_alike(
    counts: list[tuple[int, int]], size: int, a: float, b: float
) -> None:
    n, k = (np.array(column) for column in zip(*counts, strict=True))
    sizes = np.full(len(n), size)
    dead, solved = no_variance(n, k, sizes, Prior(a, b)), some_right(n, k, size, Prior(a, b))
    assert ((dead >= 0) & (dead <= 1) & (solved >= 0) & (solved <= 1)).all()
    assert no_variance(n, n - k, sizes, Prior(b, a)) == pytest.approx(dead)
    assert (1 - solved <= dead + 1e-9).all()  # all wrong is one way to be alike


def test_chances_are_those_of_the_beta_binomial() -> None:
    n, k, size = np.array([0, 3, 8, 8, 64]), np.array([0, 1, 0, 8, 21]), np.array([2, 5, 8, 4, 16])
    both = [stats.betabinom.pmf(end, size, 0.4 + k, 1.3 + n - k) for end in (0 * size, size)]
    assert no_variance(n, k, size, Prior(0.4, 1.3)) == pytest.approx(both[0] + both[1], rel=1e-9)


def test_the_prior_is_the_likeliest_by_a_grid() -> None:
    n, k = np.array([8] * 6 + [4, 0]), np.array([0, 0, 1, 3, 8, 8, 2, 0])
    seen = [*zip(n.tolist(), k.tolist(), strict=True), (2, 1)]

    def likely(a: Floats, b: Floats) -> Floats:
        return np.sum([stats.betabinom.logpmf(right, num, a, b) for num, right in seen if num], axis=0)

    found = fitted_prior(n, k)
    mean, strength = np.meshgrid(np.linspace(0.05, 0.95, 91), np.geomspace(0.1, 20, 100))
    grid = likely(mean * strength, (1 - mean) * strength).max()
    assert grid - 1e-6 <= likely(np.array([found.a]), np.array([found.b]))[0] < grid + 0.01


def test_a_set_that_is_never_solved_is_forecast_so() -> None:
    n = np.full(300, 8)
    prior = fitted_prior(n, np.zeros(300, dtype=np.int64))
    assert one(8, 0, 8, prior) > 0.97  # 0.53 with a uniform prior
    assert some_right(n, 0 * n, 8, prior).sum() < 9


@pytest.mark.parametrize("rate", [0, 2, 4, 8])
def test_counts_that_are_all_alike_have_a_prior(rate: int) -> None:
    prior = fitted_prior(np.full(50, 8), np.full(50, rate))
    assert STRENGTH[0] <= prior.a + prior.b <= STRENGTH[1] * 1.001
    assert prior.a / (prior.a + prior.b) == pytest.approx(rate / 8, abs=0.03)


def test_no_counts_leave_the_problem_that_is_added() -> None:
    prior = fitted_prior(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert prior.a == pytest.approx(prior.b, rel=1e-3)
    assert math.isfinite(prior.a)


def test_drawn_rates_are_forecast_within_their_error() -> None:
    rng = np.random.default_rng(5)
    rate = rng.beta(0.3, 0.9, 4000)
    n = np.full(4000, 4)
    k, then = rng.binomial(4, rate), rng.binomial(8, rate)
    selected = (k > 0) & (k < 4)  # a filter on what was measured biases nothing
    prior = fitted_prior(n, k)
    for rows in (np.ones(4000, dtype=np.bool_), selected):
        expected = no_variance(n[rows], k[rows], np.full(int(rows.sum()), 8), prior).mean()
        assert expected == pytest.approx(np.isin(then[rows], [0, 8]).mean(), abs=0.03)
