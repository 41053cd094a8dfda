"""A model of the chance to solve a problem with some help, fitted to counts of judged rollouts.

    logit P(solve) = ability[policy] - kind[domain] - own[problem] + (gain + extra[problem]) * share

ability is N(level, a^2), kind N(0, k^2), own N(0, d^2), extra N(0, g^2), level and gain N(0, FLAT^2): a Rasch model
(IRT 1PL) with a slope in the share of the hint; the difficulty of a problem is kind + own. The mode is found by
Newton's method, whose steps are halved where the posterior would fall; a, k, d and g by MacKay's iteration (Neural
Computation 4, 1992), the posterior taken for normal at its mode (Laplace), and each as if one more value of spread
START had been seen. A problem without rollouts has the difficulty of its domain, or of all, and their spread. Hints may
be shown to failed problems alone: these failures are among the counts, so that the choice does not bias the fit.
Not covered: policies that are better at some problems than at others (2PL and up), a gain that is not linear in the
share, and dependence between the rollouts of a group.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy import sparse, special

from gradus.data.arrays import Floats, Ints
from gradus.data.intervals import CONFIDENCE

FLAT = 5.0
"""Standard deviation of level and gain, in logits."""
START = 1.0
"""Standard deviations before anything is known."""
_SPREAD_STEPS, _SPREAD_ENOUGH = 100, 5e-3
_NEWTON_STEPS, _NEWTON_ENOUGH = 100, 1e-6
_ROUNDING = 1e-10
"""Share by which a log posterior may fall through rounding."""
_TOGETHER = 1 << 15
"""Chances that are predicted together, with a number for every policy each."""
_NODES, _WEIGHTS = hermegauss(32)
"""Of the Gauss-Hermite quadrature; the weights add up to the square root of 2 pi."""


@dataclass(frozen=True)
class Counts:
    """Judged rollouts by problem, policy and share of the hint, (R,) each."""

    problem: Ints
    """Numbers from 0."""
    policy: Ints
    """Numbers from 0."""
    share: Floats
    """Share of the hint that was shown, 0 to 1."""
    n: Ints
    solved: Ints


@dataclass(frozen=True)
class Predicted:
    """The posterior of chances to solve: normal in the logit, (Q,) each."""

    logit: Floats
    error: Floats

    @property
    def rate(self) -> Floats:
        """The mean of the chance (Q,)."""
        return self._mean(special.expit)

    @property
    def rate_sd(self) -> Floats:
        """The standard deviation of the chance (Q,)."""
        return np.sqrt(np.maximum(self._mean(lambda logit: special.expit(logit) ** 2) - self.rate**2, 0.0))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
        """Return the ends of the central interval of the chance, (Q,) each."""
        half = float(special.ndtri((1 + confidence) / 2)) * self.error
        return special.expit(self.logit - half), special.expit(self.logit + half)

    def none_right(self, samples: int) -> Floats:
        """Return the chance that no sample is right (Q,): 1 - pass@samples."""
        return self._mean(lambda logit: special.expit(-logit) ** samples)

    def signal(self, samples: int) -> Floats:
        """Return the chance that a group of samples has both right and wrong ones (Q,)."""
        return self._mean(lambda logit: 1 - special.expit(logit) ** samples - special.expit(-logit) ** samples)

    def _mean(self, of: Callable[[Floats], Floats]) -> Floats:
        total = np.zeros(len(self.logit))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            total += weight * of(self.logit + node * self.error)
        return total / _WEIGHTS.sum()


@dataclass(frozen=True)
class Lines:
    """The posterior of logit = bare + gain * share of some problems: means, variances and covariance, (P,) each."""

    bare: Floats
    gain: Floats
    bare_var: Floats
    gain_var: Floats
    covariance: Floats


@dataclass(frozen=True)
class Spread:
    """Standard deviations between policies, domains, problems of a domain, and of what a hint adds, in logits."""

    ability: float
    kind: float
    own: float
    extra: float


@dataclass(frozen=True)
class Layout:
    """The parameters: J policies, and the domain of each of P problems, a number from 0 or -1 for none (P,)."""

    policies: int
    domain: Ints

    @property
    def shared(self) -> int:
        """Parameters that rows of several problems share: J abilities, level, gain, G kinds."""
        return self.policies + 2 + int(self.domain.max(initial=-1)) + 1

    @property
    def level(self) -> int:
        """The number of the level among them; that of the gain is the next one."""
        return self.policies

    def rows(self, problem: Ints, policy: Ints, share: Floats) -> tuple[Any, Any]:
        """Return logits as sums of parameters, sparse: of shared ones (R, shared), of those of problems (R, 2P)."""
        num, problems = len(problem), len(self.domain)
        row, one, kind = np.arange(num), np.ones(num), self.domain[problem]
        there = kind >= 0
        columns = np.concatenate((policy, np.full(num, self.level + 1), self.level + 2 + kind[there]))
        values, at = np.concatenate((one, share, -one[there])), np.concatenate((row, row, row[there]))
        own = (np.concatenate((-one, share)), (np.tile(row, 2), np.concatenate((problem, problems + problem))))
        return (
            sparse.csr_array((values, (at, columns)), (num, self.shared)),
            sparse.csr_array(own, (num, 2 * problems)),
        )

    def precision(self, spread: Spread) -> Floats:
        """Return the prior precision of the shared parameters (shared, shared)."""
        tight, at = spread.ability**-2, self.level
        found = np.diag(np.full(self.shared, spread.kind**-2))
        found[:at, :at] = np.diag(np.full(at, tight))
        found[:at, at] = found[at, :at] = -tight
        found[at, at], found[at + 1, at + 1] = at * tight + FLAT**-2, FLAT**-2
        return found


@dataclass(frozen=True)
class _Posterior:
    """The mode of shared parameters (S,) and of those of problems (2P,), and their covariance.

    The covariance of the second is `local` + `mixed` @ `shared` @ `mixed`.T, and with the first -`mixed` @ `shared`.
    """

    both: Floats
    own: Floats
    shared: Floats
    """Covariance of the first (S, S)."""
    local: Any
    """Inverse curvature of the second if the first is known (2P, 2P), sparse."""
    mixed: Any
    """`local` @ curvature between both (2P, S), sparse."""

    def errors(self, both: Any, own: Any) -> Floats:
        """Return standard deviations of linear combinations, rows of sparse (Q, S) and (Q, 2P), as (Q,)."""
        found = [np.empty(0)]
        for rows in _parts(both.shape[0]):
            alone = np.asarray(own[rows].multiply(own[rows] @ self.local).sum(axis=1)).ravel()
            known = (both[rows] - own[rows] @ self.mixed).toarray()
            found.append(np.sqrt(alone + np.einsum("qj,qj->q", known @ self.shared, known)))
        return np.concatenate(found)


@dataclass(frozen=True)
class Surface:
    """The fitted model."""

    spread: Spread
    layout: Layout
    _posterior: _Posterior

    @property
    def ability(self) -> Floats:
        """Ability of each policy, in logits (J,): what it solves of a problem of difficulty 0 without a hint."""
        return self._posterior.both[: self.layout.level]

    @property
    def gain(self) -> float:
        """Logits that a whole hint adds on average."""
        return float(self._posterior.both[self.layout.level + 1])

    @property
    def kind(self) -> Floats:
        """Difficulty of each domain, in logits (G,); 0 is the mean."""
        return self._posterior.both[self.layout.level + 2 :]

    @property
    def difficulty(self) -> Floats:
        """Difficulty of each problem, in logits (P,)."""
        domain = self.layout.domain
        return self._posterior.own[: len(domain)] + np.append(self.kind, 0.0)[domain]

    def predict(self, problem: Ints, policy: Ints, share: Floats) -> Predicted:
        """Return the chance of each problem with a policy and a share of its hint, (Q,) each."""
        both, own = self.layout.rows(problem, policy, share)
        logit = both @ self._posterior.both + own @ self._posterior.own
        return Predicted(logit, self._posterior.errors(both, own))

    def lines(self, policy: int) -> Lines:
        """Return how the logit of each problem with a policy depends on the share of its hint."""
        every = np.arange(len(self.layout.domain))
        at = [self.layout.rows(every, np.full(len(every), policy), np.full(len(every), share)) for share in (0.0, 1.0)]
        (bare, bare_own), (whole, whole_own) = at
        parts = (bare, bare_own), (whole - bare, whole_own - bare_own), (whole, whole_own)
        means = [first @ self._posterior.both + second @ self._posterior.own for first, second in parts]
        bare_var, gain_var, whole_var = (self._posterior.errors(first, second) ** 2 for first, second in parts)
        return Lines(means[0], means[1], bare_var, gain_var, (whole_var - bare_var - gain_var) / 2)

    def ahead(self, policy: int, of: int) -> tuple[float, float]:
        """Return by how many logits the ability of a policy exceeds that of another one, and the error of that."""
        both = _picked(np.array([policy]), self.layout.shared) - _picked(np.array([of]), self.layout.shared)
        own = sparse.csr_array((1, 2 * len(self.layout.domain)))
        return float((both @ self._posterior.both)[0]), float(self._posterior.errors(both, own)[0])


def fit(counts: Counts, layout: Layout, spread: Spread | None = None) -> Surface:
    """Return the model of counts; the spreads are estimated unless they are passed.

    Problems and policies may be more than those that have rows.
    """
    design = layout.rows(counts.problem, counts.policy, counts.share)
    found = spread or Spread(START, START, START, START)
    posterior = _Posterior(np.zeros(layout.shared), np.zeros(2 * len(layout.domain)), np.empty(0), None, None)
    for _ in range(_SPREAD_STEPS):
        posterior = _mode(counts, *design, layout.precision(found), found, posterior)
        before, found = found, spread or _spread(counts, layout, posterior, found)
        pairs = zip(vars(found).values(), vars(before).values(), strict=True)
        if all(abs(new / old - 1) < _SPREAD_ENOUGH for new, old in pairs):
            break
    return Surface(found, layout, posterior)


def _mode(counts: Counts, both: Any, own: Any, prior: Floats, spread: Spread, start: _Posterior) -> _Posterior:
    """Return the posterior around its mode by Newton's method."""
    apart = np.repeat([spread.own**-2, spread.extra**-2], own.shape[1] // 2)

    def height(first: Floats, second: Floats) -> float:
        logit = both @ first + own @ second
        seen = counts.solved @ logit - counts.n @ np.logaddexp(0.0, logit)
        return float(seen - first @ prior @ first / 2 - apart @ second**2 / 2)

    first, second, curvature = start.both, start.own, None
    for _ in range(_NEWTON_STEPS):
        rate = special.expit(both @ first + own @ second)
        wrong = counts.solved - counts.n * rate
        up, side = both.T @ wrong - prior @ first, own.T @ wrong - apart * second
        curvature = _curvature(counts.n * rate * (1 - rate), both, own, prior, apart)
        shared, local, mixed = curvature
        step = shared @ (up - mixed.T @ side)
        aside = local @ side - mixed @ step
        size, now = 1.0, height(first, second)
        least = now - _ROUNDING * abs(now)
        while height(first + size * step, second + size * aside) < least:
            size /= 2
        first, second = first + size * step, second + size * aside
        if max(np.abs(step).max(initial=0.0), np.abs(aside).max(initial=0.0)) < _NEWTON_ENOUGH:
            break
    assert curvature is not None
    return _Posterior(first, second, *curvature)


def _curvature(weight: Floats, both: Any, own: Any, prior: Floats, apart: Floats) -> tuple[Floats, Any, Any]:
    """Return `shared`, `local` and `mixed` of a posterior, by the Schur complement of blocks of two a problem."""
    num = own.shape[1] // 2
    weighted = own.multiply(weight[:, None]).tocsr()
    squares = np.asarray(own.multiply(weighted).sum(axis=0)).ravel() + apart
    one, two = squares[:num], squares[num:]
    cross = np.asarray(own[:, :num].multiply(weighted[:, num:]).sum(axis=0)).ravel()
    area = one * two - cross**2
    off = -cross / area
    at = np.arange(2 * num)
    values = np.concatenate((two / area, one / area, off, off))
    local = sparse.csr_array((values, (np.tile(at, 2), np.concatenate((at, np.roll(at, num))))), (2 * num, 2 * num))
    between = (both.T @ weighted).T  # (2P, S)
    mixed = local @ between
    known = (both.T @ both.multiply(weight[:, None])).toarray() + prior - (between.T @ mixed).toarray()
    return np.linalg.inv(known), local, mixed


def _spread(counts: Counts, layout: Layout, posterior: _Posterior, now: Spread) -> Spread:
    """Return the next spreads: squares of what is spread over how many of it the rows determine.

    What has no rows would only slow the iteration down, and is left out.
    """
    width, depth = layout.shared, 2 * len(layout.domain)
    seen, helped = np.unique(counts.problem), np.unique(counts.problem[counts.share > 0])
    kinds, policies = np.unique(layout.domain[seen]), np.arange(layout.level)

    def spread(before: float, both: Any = None, own: Any = None) -> float:
        both = sparse.csr_array((own.shape[0], width)) if both is None else both
        own = sparse.csr_array((both.shape[0], depth)) if own is None else own
        squares = (both @ posterior.both + own @ posterior.own) ** 2
        known = 1 - posterior.errors(both, own) ** 2 / before**2
        return float(np.sqrt((squares.sum() + START**2) / (known.sum() + 1)))

    return Spread(
        spread(now.ability, _picked(policies, width) - _picked(np.full_like(policies, layout.level), width)),
        spread(now.kind, _picked(layout.level + 2 + kinds[kinds >= 0], width)),
        spread(now.own, own=_picked(seen, depth)),
        spread(now.extra, own=_picked(depth // 2 + helped, depth)),
    )


def _picked(columns: Ints, width: int) -> Any:
    """Return rows that pick one number each (Q, width), sparse."""
    return sparse.csr_array((np.ones(len(columns)), (np.arange(len(columns)), columns)), (len(columns), width))


def _parts(num: int) -> Iterator[slice]:
    return (slice(begin, begin + _TOGETHER) for begin in range(0, num, _TOGETHER))
