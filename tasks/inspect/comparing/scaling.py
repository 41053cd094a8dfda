"""Learning curves: the sigmoid of a pass rate over compute (ScaleRL)."""

from dataclasses import dataclass

import numpy as np
import scipy.optimize

from gradus.data.arrays import Floats

MIN_POINTS = 5
"""Points of a curve at least: the start, and more than the three numbers that are fitted."""
_EXPONENTS = np.geomspace(0.2, 10.0, 40)
_REACH = 10.0
"""A midpoint lies at most this factor beyond the compute of the points."""


@dataclass(frozen=True)
class Sigmoid:
    """R(C) = start + (asymptote - start) / (1 + (midpoint / C)^exponent)."""

    start: float
    """R_0, the rate at compute 0."""
    asymptote: float
    """A, the rate that is approached."""
    exponent: float
    """B, how fast."""
    midpoint: float
    """C_mid, the compute at which half of the gain is made."""
    rmse: float = 0.0
    """Root of the mean squared error of the points that were fitted."""

    def at(self, compute: Floats | float) -> Floats:
        """Return the rate at each compute, which is 0 or more."""
        return self.start + (self.asymptote - self.start) * _share(
            np.asarray(compute, np.float64), self.exponent, self.midpoint
        )


def fit_sigmoid(compute: Floats, rate: Floats) -> Sigmoid:
    """Return the sigmoid of least squares through the rates (N,) in 0..1 at computes (N,), the first of which is 0.

    The Art of Scaling Reinforcement Learning Compute, arXiv 2510.13786, eq. 1; its fit, too, takes R_0 as measured. For
    each exponent and midpoint the asymptote is that of least squares in R_0 .. 1; those two are searched on a grid and
    then refined. Extrapolation is only as good as the points are far along the curve.
    Raise ValueError for fewer than MIN_POINTS points, or if the first is not the only one at compute 0.
    """
    compute, rate = np.asarray(compute, np.float64), np.asarray(rate, np.float64)
    if len(compute) < MIN_POINTS:
        raise ValueError(f"a sigmoid needs {MIN_POINTS} points, not {len(compute)}")
    if compute[0] != 0 or not (compute[1:] > 0).all():
        raise ValueError("the first point, and no other, is at compute 0")
    start, gain = float(rate[0]), rate[1:] - rate[0]
    places = np.log(compute[1:])

    def amplitude(shares: Floats) -> Floats:
        return np.clip((shares * gain).sum(-1) / (shares**2).sum(-1), 0.0, 1.0 - start)

    def errors(found: Floats) -> Floats:
        shares = _share(compute[1:], np.exp(found[0]), np.exp(found[1]))
        return amplitude(shares) * shares - gain

    bounds = (
        [np.log(_EXPONENTS[0]), places.min() - np.log(_REACH)],
        [np.log(_EXPONENTS[-1]), places.max() + np.log(_REACH)],
    )
    grid = np.stack(np.meshgrid(np.log(_EXPONENTS), np.linspace(bounds[0][1], bounds[1][1], 60), indexing="ij"), -1)
    losses = [float((errors(point) ** 2).sum()) for point in grid.reshape(-1, 2)]
    first = np.clip(grid.reshape(-1, 2)[int(np.argmin(losses))], np.add(bounds[0], 1e-9), np.subtract(bounds[1], 1e-9))
    best = scipy.optimize.least_squares(errors, first, bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12).x
    exponent, midpoint = float(np.exp(best[0])), float(np.exp(best[1]))
    top = start + float(amplitude(_share(compute[1:], exponent, midpoint)))
    return Sigmoid(start, top, exponent, midpoint, float(np.sqrt((errors(best) ** 2).mean())))


def _share(compute: Floats, exponent: float, midpoint: float) -> Floats:
    """Return the share of the gain that is made at each compute: 1 / (1 + (midpoint / C)^exponent), 0 at C = 0."""
    ratio = np.divide(midpoint, compute, out=np.full_like(compute, np.inf), where=compute > 0)
    return 1 / (1 + ratio**exponent)
