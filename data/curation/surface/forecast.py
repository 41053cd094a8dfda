"""Forecast of groups without variance, of problems of which n rollouts were judged and k were right.

    prior = fitted_prior(n, k)                       # Beta(a, b), the spread of pass rates over problems
    no_variance(n, k, size, prior)                   # (N,): the chance that a group of `size` is all right or all wrong
    some_right(n, k, 8, prior)                       # (N,): pass@8

A pass rate p is not taken to be k / n: by that, a problem of 4 right of 4 could never fail. Its posterior is
Beta(a + k, b + n - k), and the forecast is the mean of p^G + (1 - p)^G over it, which is exact (beta-binomial: Skellam,
Journal of the Royal Statistical Society B 10, 1948):

    E[p^G] = B(a + k + G, b + n - k) / B(a + k, b + n - k),  and with a + k and b + n - k exchanged E[(1 - p)^G]

a and b are those under which the counts of all measured problems are likeliest (parametric empirical Bayes: Morris,
Journal of the American Statistical Association 78, 1983), as if one more problem had been solved once in two attempts.
With a uniform prior, problems of 0 right of 8 would be expected to vary in 47 % of their next groups of 8, also in a
set where not one of hundreds was ever solved. Left out: dependence between the rollouts of a group, and graded rewards,
which may vary where the verdict does not.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy import optimize, special

from gradus.data.arrays import Floats, Ints

STRENGTH = (0.05, 200.0)
"""Smallest and largest a + b. Counts that are all alike would be likeliest with a sum without bound."""
_ONCE_IN_TWO = (2, 1)
"""The n and k of the problem that is added to those measured."""
_MEAN = 12.0
"""Largest logit of the mean of the prior."""


@dataclass(frozen=True)
class Prior:
    """The distribution of pass rates over problems, Beta(a, b)."""

    a: float
    b: float


def fitted_prior(n: Ints, k: Ints) -> Prior:
    """Return the prior under which counts (N,) are likeliest; those with n = 0 count for nothing."""
    counts = np.stack((np.append(n, _ONCE_IN_TWO[0]), np.append(k, _ONCE_IN_TWO[1])))
    pairs, times = np.unique(counts, axis=1, return_counts=True)
    (num, right), weight = pairs.astype(np.float64), times.astype(np.float64)

    def unlikely(at: Floats) -> float:
        a, b = _beta_of(at)
        return -float(weight @ (special.betaln(a + right, b + num - right) - special.betaln(a, b)))

    sums = cast("Any", np.log(STRENGTH))
    start = [special.logit((weight @ right) / (weight @ num)), float(np.mean(sums))]
    found = optimize.minimize(unlikely, start, method="L-BFGS-B", bounds=[(-_MEAN, _MEAN), tuple(sums)])
    return Prior(*_beta_of(found.x))


def _beta_of(at: Floats) -> tuple[float, float]:
    """Return a and b of the logit of a / (a + b) and the logarithm of a + b."""
    mean, strength = float(special.expit(at[0])), float(np.exp(at[1]))
    return mean * strength, (1 - mean) * strength


def no_variance(n: Ints, k: Ints, size: Ints, prior: Prior) -> Floats:
    """Return the chance that all `size` completions of a group are right, or all wrong, (N,)."""
    a, b = _posterior(n, k, prior)
    both = _all_right(a, b, size) + _all_right(b, a, size)
    return np.where(size > 0, np.minimum(both, 1.0), 1.0)


def some_right(n: Ints, k: Ints, samples: int, prior: Prior) -> Floats:
    """Return the chance that at least one of some samples is right, pass@samples, (N,)."""
    a, b = _posterior(n, k, prior)
    return 1 - _all_right(b, a, np.full(len(n), samples))


def _posterior(n: Ints, k: Ints, prior: Prior) -> tuple[Floats, Floats]:
    return (prior.a + k).astype(np.float64), (prior.b + n - k).astype(np.float64)


def _all_right(a: Floats, b: Floats, size: Ints) -> Floats:
    return np.exp(special.betaln(a + size, b) - special.betaln(a, b))
