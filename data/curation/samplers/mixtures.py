"""Draws of domains before problems: each domain has a share of the draw."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import scipy.optimize
from annotated_types import Gt

from gradus.components import component
from gradus.components.rows import Rows, numbered
from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.curation.results import Draw
from gradus.data.errors import UsageError


@component("sampler", paper="arXiv 2506.08672", needs=("domain", "dads.reward"))
def dads(
    candidates: Rows,
    num: int,
    rng: np.random.Generator,
    *,
    target: float = 1.0,
    temperature: Annotated[float, Gt(0.0)] = 0.5,
) -> Draw:
    """Draw a domain by the softmax of what its mean reward lacks, then one of its problems, `num` times (RuleReasoner).

    RuleReasoner (arXiv 2506.08672): w_d in proportion to exp(max(0, target - r_d) / temperature), where the tracker
    `dads` keeps r_d; a domain of which nothing is known lacks all of `target`. Weights are the shares at first.

    Args:
        target: Mean reward that every domain should have.
        temperature: Of the softmax; small takes the worst domain alone.
    """
    reward = candidates["dads.reward"]
    domain, first = _domains(candidates)
    lack = np.maximum(0.0, target - np.nan_to_num(reward[first]))
    odds = np.exp((lack - lack.max(initial=-np.inf)) / temperature)
    return _drawn(domain, odds / odds.sum(), num, rng, np.isnan(reward))


@component("sampler", paper="arXiv 2505.24871", libraries=("scipy",), needs=("domain",))
def modomodo(
    candidates: Rows,
    num: int,
    rng: np.random.Generator,
    *,
    domains: tuple[str, ...] = (),
    pilots: tuple[tuple[float, ...], ...] = (),
    outcomes: tuple[float, ...] = (),
) -> Draw:
    """Draw domains in the mixture that short runs predict to be best, then one of their problems each (MoDoMoDo).

    MoDoMoDo (arXiv 2505.24871): the outcome of a run is predicted from the shares of its domains by a function fitted
    to pilot runs, and the mixture of the highest prediction is used. Without pilots every domain has the same share.
    Guess: the function is w'Qw + b'w + c (`best_mixture`). Other domains than those named are not drawn.

    Args:
        domains: The domains that the pilots mix; all without pilots.
        pilots: Shares of each of `domains` in each pilot run; those of one run are scaled to a sum of 1.
        outcomes: Result of each pilot run, such as its accuracy on a held-out suite; more is better.
    """
    even = all(len(each) == len(domains) and sum(each) > 0 and min(each) >= 0 for each in pilots)
    if len(pilots) != len(outcomes) or not even:
        raise UsageError(
            f"modomodo: there are {len(outcomes)} outcomes of {len(pilots)} pilots of {len(domains)} domains",
            hint="give each pilot an outcome, and a share of at least 0 for each of `domains`",
        )
    domain, first = _domains(candidates)
    share = dict(zip(domains, best_mixture(pilots, outcomes), strict=True)) if pilots else {}
    odds = np.array([share.get(each or "", float(not pilots)) for each in candidates["domain"][first]])
    return _drawn(domain, odds / max(odds.sum(), 1e-300), num, rng, np.zeros(len(domain), dtype=np.bool_))


def best_mixture(pilots: Sequence[Sequence[float]], outcomes: Sequence[float]) -> Floats:
    """Return the shares (D,) at which a quadratic that fits some outcomes (P,) best is largest on the simplex.

    Of the quadratics that fit (P, D) pilots equally well it is the one of the smallest coefficients, after the mean
    outcome. The maximum is searched from each pilot, each domain alone and the uniform mixture.
    """
    shares = np.array(pilots, dtype=np.float64)
    shares /= shares.sum(1, keepdims=True)
    num = shares.shape[1]
    one, two = np.triu_indices(num)

    def terms(w: Floats) -> Floats:
        return np.concatenate((w, w[one] * w[two]))

    mean = float(np.mean(outcomes))
    fitted = np.linalg.lstsq(np.stack([terms(w) for w in shares]), np.array(outcomes) - mean, rcond=None)[0]

    def lost(w: Floats) -> float:
        return -float(terms(w) @ fitted)

    whole = scipy.optimize.LinearConstraint(np.ones(num), 1.0, 1.0)
    found = [
        np.clip(scipy.optimize.minimize(lost, w, bounds=[(0.0, 1.0)] * num, constraints=whole).x, 0.0, 1.0)
        for w in (*shares, *np.eye(num), np.full(num, 1 / num))
    ]
    best = min(found, key=lost)
    return best / best.sum()


def _domains(candidates: Rows) -> tuple[Ints, Ints]:
    """Return the domain of each candidate (N,), those without one together, and the first candidate of each (D,)."""
    domain = numbered([[each or "" for each in candidates["domain"]]])
    return domain, np.unique(domain, return_index=True)[1]


def _drawn(domain: Ints, share: Floats, num: int, rng: np.random.Generator, unknown: Bools) -> Draw:
    """Draw a domain by its share (D,), then one of its problems, `num` times.

    A domain whose problems are all drawn is left out, and so is one without a share.
    """
    left = [rng.permutation(np.flatnonzero(domain == each)).tolist() for each in range(len(share))]
    index: list[int] = []
    for _ in range(num):
        odds = np.where([bool(problems) for problems in left], share, 0.0)
        if not odds.any():
            break
        index.append(left[rng.choice(len(odds), p=odds / odds.sum())].pop())
    taken = np.array(index, dtype=np.int64)
    return Draw(taken, share[domain[taken]], unknown[taken])
