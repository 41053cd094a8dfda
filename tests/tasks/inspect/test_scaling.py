"""The sigmoid of a pass rate over compute, against SciPy's curve_fit and curves of known numbers."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.tasks.inspect.comparing.trainings import Sigmoid, fit_sigmoid

COMPUTE = np.array([0.0, *np.geomspace(60, 6000, 12)])


def test_half_of_the_gain_is_made_at_the_midpoint() -> None:
    curve = Sigmoid(start=0.2, asymptote=0.6, exponent=2.0, midpoint=500.0)
    # (500 / 1000)^2 = 1/4, so 0.2 + 0.4 / 1.25
    assert curve.at(np.array([0.0, 500.0, 1000.0, 1e12])).tolist() == pytest.approx([0.2, 0.4, 0.52, 0.6])


@pytest.mark.slow
@given(st.floats(0.0, 0.4), st.floats(0.1, 0.5), st.floats(0.6, 3.0), st.floats(200, 2000))
@settings(max_examples=15, deadline=None)
def test_a_curve_without_noise_is_found(start: float, gain: float, exponent: float, midpoint: float) -> None:
    truth = Sigmoid(start, start + gain, exponent, midpoint)
    found = fit_sigmoid(COMPUTE, truth.at(COMPUTE))
    assert found.asymptote == pytest.approx(truth.asymptote, abs=1e-4)
    assert found.exponent == pytest.approx(exponent, rel=1e-3)
    assert found.midpoint == pytest.approx(midpoint, rel=1e-3)
    assert found.rmse == pytest.approx(0, abs=1e-6)
    # The first two thirds say what the rest is.
    early = fit_sigmoid(COMPUTE[:9], truth.at(COMPUTE[:9]))
    assert np.abs(early.at(COMPUTE) - truth.at(COMPUTE)).max() < 0.01


def test_the_fit_is_that_of_scipy_on_noise() -> None:
    rng = np.random.default_rng(0)
    truth = Sigmoid(0.25, 0.6, 1.4, 700.0)
    rate = truth.at(COMPUTE) + np.array([0.0, *rng.normal(0, 0.01, 12)])

    def curve(compute: object, top: float, exponent: float, midpoint: float) -> object:
        return 0.25 + (top - 0.25) / (1 + (midpoint / compute) ** exponent)  # type: ignore[operator]

    (top, exponent, midpoint), _ = scipy.optimize.curve_fit(curve, COMPUTE[1:], rate[1:], p0=(0.5, 1.0, 500.0))
    found = fit_sigmoid(COMPUTE, rate)
    assert (found.asymptote, found.exponent, found.midpoint) == pytest.approx((top, exponent, midpoint), rel=1e-4)


def test_a_flat_or_falling_curve_has_no_gain_and_a_steep_one_ends_at_1() -> None:
    falling = fit_sigmoid(COMPUTE, 0.5 - COMPUTE / 20_000)
    assert falling.asymptote == pytest.approx(0.5)
    assert fit_sigmoid(COMPUTE, np.full(13, 0.3)).rmse == 0
    assert fit_sigmoid(COMPUTE, np.minimum(1.0, COMPUTE / 6000)).asymptote <= 1


def test_too_few_points_or_no_start_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 5 points, not 4"):
        fit_sigmoid(COMPUTE[:4], COMPUTE[:4])
    with pytest.raises(ValueError, match="the first point, and no other"):
        fit_sigmoid(COMPUTE[1:], COMPUTE[1:])
