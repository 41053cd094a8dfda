"""The chance to solve one problem after some further answers, without another fit."""

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy import special

from gradus.data.arrays import Floats

_NODES, _WEIGHTS = hermegauss(48)
_NO_SPREAD = 1e-18
"""Variance of a logit that is certain."""


def chances_after(
    mean: Floats, covariance: Floats, seen: Floats, right: Floats, shares: Floats, least: float
) -> tuple[Floats, Floats]:
    """Return the chance to solve a problem with each of some shares of its hint, after answers to it, (S,).

    With it the probability that the chance is `least` or more, as of a normal logit of its mean and variance, (S,).

    logit P(solve) = bare + gain * share, where bare and gain are normal before the answers. Given both
    numbers the answers are independent; means over what they leave are by Gauss-Hermite quadrature over the normal.

    Args:
        mean: Of bare and gain (2,).
        covariance: Of bare and gain (2, 2).
        seen: Share that was shown for each answer (N,).
        right: 1 for a right answer, 0 for a wrong one (N,).
        shares: Shares that are asked for (S,).
        least: A chance above 0.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    grid = np.stack(np.meshgrid(_NODES, _NODES, indexing="ij"), axis=-1).reshape(-1, 2)
    bare, gain = (mean + grid @ root.T).T
    prior = np.log(np.outer(_WEIGHTS, _WEIGHTS).reshape(-1))
    cells, place = np.unique(seen, return_inverse=True)
    solved, num = np.bincount(place, right, len(cells)), np.bincount(place, minlength=len(cells))
    logit = bare[:, None] + gain[:, None] * cells
    log_weight = prior + special.log_expit(logit) @ solved + special.log_expit(-logit) @ (num - solved)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    logit = bare[:, None] + gain[:, None] * shares
    middle = weight @ logit
    spread = np.sqrt(np.maximum(weight @ (logit - middle) ** 2, _NO_SPREAD))
    return weight @ special.expit(logit), special.ndtr((middle - special.logit(least)) / spread)
