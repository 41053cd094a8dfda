"""Trackers of item response theory: how able the policy is, how hard and how telling each problem."""

from typing import Annotated, Any

import numpy as np
import scipy.optimize
import scipy.special
from annotated_types import Ge, Gt

from gradus.components import component
from gradus.components.rows import Lists
from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked

_KEPT = ("rounds", "right", "wrong")


@component(
    "tracker",
    libraries=("scipy",),
    columns=("difficulty", "slope", "ability", "rate", "rounds", "right", "wrong"),
    needs=("problem_id", "correct", "hint_level", "origin"),
)
def irt(
    before: Tracked,
    round: Round,
    *,
    slopes: bool = False,
    spread: Annotated[float, Gt(0.0)] = 2.0,
    slope_spread: Annotated[float, Gt(0.0)] = 0.5,
    window: Annotated[int, Ge(1)] = 32,
) -> dict[str, Any]:
    """Keep the difficulty of each problem and the ability of each round's policy, by item response theory.

    P(right) = sigmoid(a (theta - b)), theta of the round, b and a of the problem (Rasch's one parameter, a = 1, or
    Birnbaum's two): the maximum of the posterior under theta ~ N(0, 1), b ~ N(0, spread^2), log a ~ N(0,
    slope_spread^2), fitted anew in each round. `rate` is the predicted pass rate under the newest ability, of a problem
    that was not sampled of late too. Hinted rollouts and given texts do not count.

    Args:
        slopes: Fit a slope (discrimination) of each problem, too (2PL).
        spread: Standard deviation of difficulties beforehand, logits.
        slope_spread: Standard deviation of log slopes beforehand.
        window: Rounds that count at most; older ones are forgotten.
    """
    problem, cell, when, right, wrong = _responses(before, round, window)
    policy = np.unique(when, return_inverse=True)[1]
    theta, b, a = fitted(cell, policy, right, wrong, spread, slope_spread if slopes else 0.0)
    ability = float(theta[-1]) if len(theta) else np.nan
    offsets = np.searchsorted(cell, np.arange(len(problem) + 1))
    kept = {name: Lists(values, offsets) for name, values in zip(_KEPT, (when, right, wrong), strict=True)}
    return {
        "problem_id": problem,
        "difficulty": b,
        "slope": a,
        "ability": np.full(len(b), ability),
        "rate": scipy.special.expit(a * (ability - b)),
        **kept,
    }


def fitted(
    problem: Ints, policy: Ints, right: Floats, wrong: Floats, spread: float, slope_spread: float
) -> tuple[Floats, Floats, Floats]:
    """Return abilities (T,), difficulties and slopes (P,) of the largest posterior, by counts of answers (C,) each.

    Without a `slope_spread` all slopes are 1, and the maximum is the only one. Problems and policies are numbered from
    0 on, without gaps.

    Args:
        problem: Number of the problem that was asked.
        policy: Number of the policy that answered.
        right: Right answers, and so the wrong ones.
        wrong: Wrong answers.
        spread: Standard deviation of difficulties beforehand.
        slope_spread: Standard deviation of log slopes beforehand; 0 for slopes of 1.
    """
    num, num_policies = int(problem.max(initial=-1)) + 1, int(policy.max(initial=-1)) + 1

    def parts(x: Floats) -> tuple[Floats, Floats, Floats]:
        theta, b, log_a = np.split(x, [num_policies, num_policies + num])
        return theta, b, log_a if len(log_a) else np.zeros(num)

    def lost(x: Floats) -> tuple[float, Floats]:
        theta, b, log_a = parts(x)
        a = np.exp(log_a)[problem]
        z = a * (theta[policy] - b[problem])
        misfit = right * np.logaddexp(0.0, -z) + wrong * np.logaddexp(0.0, z)
        slope = (right + wrong) * scipy.special.expit(z) - right
        found = np.concatenate(
            (
                np.bincount(policy, a * slope, num_policies) + theta,
                b / spread**2 - np.bincount(problem, a * slope, num),
                np.bincount(problem, z * slope, num) + log_a / slope_spread**2 if slope_spread else [],
            )
        )
        prior = (theta**2).sum() + ((b / spread) ** 2).sum()
        prior += ((log_a / slope_spread) ** 2).sum() if slope_spread else 0.0
        return float(misfit.sum() + prior / 2), found

    start = np.zeros(num_policies + num * (2 if slope_spread else 1))
    found = scipy.optimize.minimize(lost, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    theta, b, log_a = parts(found.x)
    return theta, b, np.exp(log_a)


def _responses(before: Tracked, round: Round, window: int) -> tuple[Any, Ints, Ints, Floats, Floats]:
    """Return names of problems (P,), and of their counts by round (C,) problem, round, right and wrong, in order."""
    rows = round.rows
    judged = own_rows(rows) & ~np.isnan(rows["correct"]) & (np.nan_to_num(rows["hint_level"]) == 0)
    asked, number = np.unique(rows["problem_id"][judged].astype(str), return_inverse=True)
    right = np.bincount(number, rows["correct"][judged], len(asked))
    new = (asked, np.full(len(asked), round.index), right, np.bincount(number, minlength=len(asked)) - right)
    old = [before[name] for name in _KEPT] if before.num_rows else [Lists(np.zeros(0), np.zeros(1, np.int64))] * 3
    names = np.repeat(before["problem_id"].astype(str), np.diff(old[0].offsets))
    whole = [np.concatenate(pair) for pair in zip((names, *(each.values for each in old)), new, strict=True)]
    recent: Bools = whole[1] > round.index - window
    problem, cell = np.unique(whole[0][recent], return_inverse=True)
    when, num_right, num_wrong = (each[recent] for each in whole[1:])
    order = np.lexsort((when, cell))
    return problem, cell[order], when[order].astype(np.int64), num_right[order], num_wrong[order]
