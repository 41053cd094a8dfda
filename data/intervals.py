"""Intervals and p values of means over seeds of training and problems.

An array of values is (..., S, P): seeds x problems. With one seed the problems alone count as chance. Both factors are
random and crossed (Westfall, Kenny and Judd, Journal of Experimental Psychology: General 143, 2014): every seed meets
every problem, so that neither the seeds nor the problems are independent samples of the mean. Left out: values missing
in some cells.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from gradus.data.arrays import Floats, Ints
from gradus.data.records import Figure

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
POWER = 0.8
"""The chance with which a difference that is called detectable is detected."""


@dataclass(frozen=True)
class Crossed:
    """The means and mean squares of (..., S, P) values, each (...)."""

    seeds: int
    problems: int
    mean: Floats
    ms_seeds: Floats
    ms_problems: Floats
    ms_rest: Floats

    @property
    def variance(self) -> Floats:
        """Variance of the mean: (MS_S + MS_P - MS_E) / SP, and no less than that of seeds or problems alone.

        The bound is an estimate of a variance component of 0 where MS_S < MS_E or MS_P < MS_E.
        """
        both = self.ms_seeds + self.ms_problems - self.ms_rest
        return np.maximum(both, np.maximum(self.ms_seeds, self.ms_problems)) / (self.seeds * self.problems)

    @property
    def freedom(self) -> Floats:
        """Degrees of freedom of the variance (Satterthwaite 1946); infinite if there is one value."""
        s, p = self.seeds - 1, self.problems - 1
        both = self.ms_seeds + self.ms_problems - self.ms_rest
        parts = sum(
            (ms**2 / df for ms, df in ((self.ms_seeds, s), (self.ms_problems, p), (self.ms_rest, s * p)) if df),
            start=np.zeros_like(both),
        )
        satterthwaite = np.divide(both**2, parts, out=np.full_like(both, max(s, p)), where=parts > 0)
        alone = np.where(self.ms_seeds > self.ms_problems, s, p)
        bound = both < np.maximum(self.ms_seeds, self.ms_problems)
        found = np.where(bound, alone, satterthwaite)
        return np.where(found > 0, np.maximum(found, 1.0), np.inf)


def crossed(values: Floats) -> Crossed:
    """Return mean squares of a crossed design, one value a cell; ValueError if there is none or one is not finite."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim < 2 or not values.size or not np.isfinite(values).all():
        raise ValueError("an interval needs at least one seed and one problem, all values finite")
    seeds, problems = values.shape[-2:]
    by_seed, by_problem = values.mean(axis=-1), values.mean(axis=-2)
    mean = by_seed.mean(axis=-1)
    seed, problem = by_seed - mean[..., None], by_problem - mean[..., None]
    rest = values - by_problem[..., None, :]
    rest -= seed[..., None]
    s, p = max(seeds - 1, 1), max(problems - 1, 1)  # the sum is 0 if there is one
    return Crossed(
        seeds=seeds,
        problems=problems,
        mean=mean,
        ms_seeds=problems * (seed**2).sum(axis=-1) / s,
        ms_problems=seeds * (problem**2).sum(axis=-1) / p,
        ms_rest=np.einsum("...sp,...sp->...", rest, rest) / (s * p),
    )


@dataclass(frozen=True)
class Mean:
    """A mean, its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float
    span: float = np.inf
    """The largest absolute value that a mean can have."""

    def interval(self, confidence: float = CONFIDENCE) -> Figure:
        """Student's interval, cut at the span."""
        half = _quantile(self.freedom, (1 + confidence) / 2) * self.error
        low, high = max(self.value - half, -self.span), min(self.value + half, self.span)
        return {"value": self.value, "low": low, "high": high}

    def p_different(self) -> float:
        """The two-sided p value of a true mean of 0."""
        return min(1.0, 2 * self._above(abs(self.value)))

    def p_equivalent(self, margin: float) -> float:
        """The p value of a true mean outside of +-margin: the larger of two one-sided tests (Schuirmann 1987)."""
        return self._above(margin - abs(self.value))

    def _above(self, distance: float) -> float:
        """The chance that an estimate is further above its true mean than this."""
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(_special().stdtr(self.freedom, -distance / self.error))


def mean_of(values: Floats, *, span: float = 1.0) -> Mean:
    """Return the mean of (S, P) values within +-span: differences of pass rates, or rewards."""
    found = crossed(values)
    return Mean(float(found.mean), standard_error(found, span), float(found.freedom), span)


def standard_error(found: Crossed, span: float = 1.0) -> float:
    """Return the standard error of a mean of values within +-span, no smaller than the rule of three allows.

    If no problem of P differs from the rest, up to z^2 / (P + z^2) of all problems still may (Wilson's bound), by the
    span each. Without this floor, a handful of problems that happen to agree would prove equality.
    """
    z2 = float(_special().ndtri((1 + CONFIDENCE) / 2)) ** 2
    least = span * z2 / (found.problems + z2) / _quantile(float(found.freedom), (1 + CONFIDENCE) / 2)
    return max(float(np.sqrt(found.variance)), least)


def share_interval(values: Floats, confidence: float = CONFIDENCE) -> Figure:
    """Return the mean of (S, P) values from 0 to 1 with Wilson's interval (1927) at the effective number of problems.

    That number n solves m (1 - m) / n = variance of the mean m, as for weighted surveys (Korn and Graubard 1998); it is
    P for one verdict a problem, more for several samples, less if seeds disagree. Values without any variance are taken
    for P verdicts. Quantiles are Student's.
    """
    found = crossed(values)
    mean, variance = float(found.mean), float(found.variance)
    spread = mean * (1 - mean)
    size = spread / variance if variance > 0 and spread > 0 else found.problems
    q2 = _quantile(float(found.freedom), (1 + confidence) / 2) ** 2 / size
    centre, half = (mean + q2 / 2) / (1 + q2), np.sqrt(q2 * (spread + q2 / 4)) / (1 + q2)
    low, high = min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean)
    return {"value": mean, "low": float(low), "high": float(high)}


def detectable(error: float, freedom: float, level: float = LEVEL) -> float:
    """Return the true mean that a two-sided test at a level detects with the chance POWER (non-central t)."""
    return error * float(_special().nctdtrinc(freedom, 1 - POWER, _quantile(freedom, 1 - level / 2)))


def by_cluster(values: Floats, cluster: Ints) -> Floats:
    """Return (S, G) values with the means of (S, P) ones, clusters of problems in the place of problems.

    What a cluster 0..G-1 adds to the mean, scaled by G: by its total if clusters differ in size, so that the variance
    over clusters is that of the ratio (linearised, as in surveys of whole clusters).
    """
    size = np.bincount(cluster)
    total = np.stack([np.bincount(cluster, weights=row, minlength=len(size)) for row in values])
    mean = values.mean()
    return mean + (total - size * mean) * len(size) / values.shape[1]


def holm(p_values: Floats) -> Floats:
    """Return p values adjusted for their number (Holm 1979): rejecting those <= a has a family-wise error <= a."""
    order = np.argsort(p_values)
    factor = np.arange(len(p_values), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(p_values[order] * factor), 1.0)
    return adjusted[np.argsort(order)]


def _quantile(freedom: float, probability: float) -> float:
    """The quantile of Student's distribution; the normal one if the degrees of freedom are infinite."""
    if np.isinf(freedom):
        return float(_special().ndtri(probability))
    return float(_special().stdtrit(freedom, probability))


@cache
def _special() -> Any:
    """Return scipy.special, which a program without intervals need not import (0.3 s)."""
    return import_module("scipy.special")
