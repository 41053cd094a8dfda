"""A wave that rehearses what the policy could do when the run began."""

from typing import Annotated

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.data.curation.round import Planned, Round


@component("wave", paper="arXiv 2509.07430", needs=("pass_rate", "stored"))
def rehearse(
    round: Round,
    rng: np.random.Generator,
    *,
    problems: Annotated[int, Ge(1)] = 1024,
    rows: Annotated[int, Ge(1)] = 64,
) -> Planned | None:
    """Sample problems that the policy solves always in round 1, and take up those right answers later (DPH-RL).

    DPH-RL (arXiv 2509.07430): correct answers of the base model to problems of which all its samples are right, with
    the log-probs of then, are rehearsed throughout. The policy of round 1 is that model: of each such problem, by the
    profile, it samples one answer more. From round 2 on, rows of round 1 are drawn from the groups that are all right.
    Deviation: as many each round, drawn anew, instead of the share that such problems have of the training set.

    Args:
        problems: Problems sampled in round 1 at most, drawn at random.
        rows: Answers rehearsed in a round at most.
    """
    if round.index == 1:
        sure = np.flatnonzero(round.candidates["pass_rate"] == 1)
        chosen = np.sort(rng.permutation(sure)[:problems])
        return round.plan(problems=chosen, n=1, reason="every sample was right: to be rehearsed")
    stored = round.stored()
    right = stored.by("group").mean(stored["correct"]) == 1
    base = np.flatnonzero(right & (stored["correct"] == 1) & (stored["round"] == 1))
    chosen = np.sort(rng.permutation(base)[:rows])
    return round.plan(recall=stored["rollout_id"][chosen], reason="rehearsed") if len(chosen) else None
