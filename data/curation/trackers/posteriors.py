"""Trackers of what a problem's pass rate may be: a Beta distribution, whose past counts less from round to round."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le

from gradus.components import component
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked


@component("tracker", columns=("alpha", "beta"), needs=("problem_id", "correct", "hint_level", "origin"))
def beta_posterior(
    before: Tracked,
    round: Round,
    *,
    decay: Annotated[float, Gt(0.0), Le(1.0)] = 0.9,
    forget: Annotated[float, Gt(0.0), Le(1.0)] = 1.0,
    prior: Annotated[float, Gt(0.0)] = 1.0,
) -> dict[str, Any]:
    """Keep a Beta posterior of each problem's pass rate, whose past counts less (VADE).

    VADE: alpha <- decay alpha + correct and beta <- decay beta + wrong of a problem that was sampled, and of every
    other one, more slowly, alpha <- prior + forget (alpha - prior), beta likewise. Hinted rollouts and given texts do
    not count.
    Deviation: of the two decays the abstract alone says that they are there.

    Args:
        decay: Share of the counts so far that stays when a problem is sampled.
        forget: Share of what is beyond the prior that stays when it is not.
        prior: Alpha and beta of a problem of which nothing is known.
    """
    rows = round.rows
    judged = own_rows(rows) & ~np.isnan(rows["correct"]) & (np.nan_to_num(rows["hint_level"]) == 0)
    problem, number = np.unique(rows["problem_id"][judged].astype(str), return_inverse=True)
    alpha, beta = (
        decay * before.at(name, problem, default=prior) + np.bincount(number, verdict, len(problem))
        for name, verdict in (("alpha", rows["correct"][judged]), ("beta", 1 - rows["correct"][judged]))
    )
    if forget == 1.0:
        return {"problem_id": problem, "alpha": alpha, "beta": beta}
    left = ~np.isin(before["problem_id"], problem)
    return {
        "problem_id": np.concatenate((problem, before["problem_id"][left])),
        "alpha": np.concatenate((alpha, prior + forget * (before["alpha"][left] - prior))),
        "beta": np.concatenate((beta, prior + forget * (before["beta"][left] - prior))),
    }
