"""Trackers of how well the policy does on a problem, as a baseline and for choosing problems."""

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from annotated_types import Gt, Le, Lt

from gradus.components import component
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked, places


@component(
    "tracker",
    paper="arXiv 2509.13232",
    columns=("alpha", "beta", "value", "round"),
    needs=("problem_id", "reward", "origin", "pass_rate"),
)
def spo(
    before: Tracked,
    round: Round,
    *,
    half_life: Annotated[float, Gt(0.0)] = 8.0,
    low: Annotated[float, Gt(0.0), Lt(1.0)] = 0.875,
    high: Annotated[float, Gt(0.0), Le(1.0)] = 0.96,
) -> dict[str, Any]:
    """Keep an expected reward of each problem that forgets more, the longer ago the problem was sampled (SPO).

    SPO, single-stream (arXiv 2509.13232): alpha <- rho alpha + r, beta <- rho beta + 1 - r, value = alpha / (alpha +
    beta), rho = 2^(-D / D_half) within [low, high], for a reward within 0 and 1. A new problem begins with
    1 / (1 - low) counts at its measured pass rate, or at one half. Given texts do not count.
    Deviation: D is the number of rounds since the problem was sampled, where the authors take the KL divergence of the
    policy from the one that sampled it then.

    Args:
        half_life: Rounds after which a count weighs one half.
        low: Smallest share of the counts that stays.
        high: Largest share of the counts that stays.
    """
    rows, pool = round.rows, round.candidates
    known = own_rows(rows) & ~np.isnan(rows["reward"])
    problem, number = np.unique(rows["problem_id"][known].astype(str), return_inverse=True)
    reward = np.clip(rows["reward"][known], 0.0, 1.0)
    rate = np.append(pool["pass_rate"], np.nan)[places([pa.array(problem)], [pool.arrow("problem_id")])]
    rate, counts = np.where(np.isnan(rate), 0.5, rate), 1 / (1 - low)
    age = round.index - before.at("round", problem, default=round.index)
    rho = np.clip(2.0 ** (-age / half_life), low, high)
    alpha, beta = rho * before.at("alpha", problem), rho * before.at("beta", problem)
    alpha = np.where(np.isnan(alpha), counts * rate, alpha) + np.bincount(number, reward, len(problem))
    beta = np.where(np.isnan(beta), counts * (1 - rate), beta) + np.bincount(number, 1 - reward, len(problem))
    last = np.full(len(problem), round.index)
    return {"problem_id": problem, "alpha": alpha, "beta": beta, "value": alpha / (alpha + beta), "round": last}
