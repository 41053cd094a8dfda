"""The chance to solve one problem after some further answers, without another fit."""

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy import special

from gradus.data.arrays import Floats

_NODES, _WEIGHTS = hermegauss(48)


def chances_after(mean: Floats, covariance: Floats, seen: Floats, right: Floats, shares: Floats) -> Floats:
    """Return the chance to solve a problem with each of some shares of its hint (S,), after answers to it.

    logit P(solve) = bare + gain * share, where bare and gain are normal before the answers. These are independent of
    each other given both numbers; the mean over what they leave is by Gauss-Hermite quadrature over the normal.

    Args:
        mean: Of bare and gain (2,).
        covariance: Of bare and gain (2, 2).
        seen: Share that was shown for each answer (N,).
        right: 1 for a right answer, 0 for a wrong one (N,).
        shares: Shares that are asked for (S,).
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
    return (weight @ special.expit(bare[:, None] + gain[:, None] * shares)) / weight.sum()
