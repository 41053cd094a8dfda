"""Trackers of how far a run has come through its problems."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked


@component(
    "tracker", paper="arXiv 2506.02281", by=(), columns=("mu",), needs=("correct", "origin", "angles.concentration")
)
def gain_rl(before: Tracked, round: Round, *, step: Annotated[float, Ge(0.0)] = 500.0) -> dict[str, Any]:
    """Keep the rank around which problems are drawn; accurate and concentrated rounds move it on (GAIN-RL).

    GAIN-RL (arXiv 2506.02281): mu <- mu + clamp(step tanh(2 (accuracy - 0.5)) + step tanh(2 concentration), 0, 2 step)
    from mu = 0, over the judged rollouts of a round, given texts left out. A round without one leaves mu as it is.

    Args:
        step: Ranks that each of the two can move it by; the authors' 500 is for thousands of problems.
    """
    known, own = before.at("mu", default=0.0)[0], own_rows(round.rows)
    accuracy, angle = (
        np.nanmean(each) if (~np.isnan(each)).any() else np.nan
        for each in (round.rows["correct"][own], round.rows["angles.concentration"][own])
    )
    moved = step * np.tanh(2 * (accuracy - 0.5)) + step * np.tanh(2 * angle)
    return {"mu": np.array([known if np.isnan(moved) else known + np.clip(moved, 0.0, 2 * step)])}


@component("tracker", by=(), columns=("share",), needs=("correct", "origin"))
def accuracy(before: Tracked, round: Round) -> dict[str, Any]:
    """Keep the share of right rows among the policy's own of the newest round with a verdict.

    So `accuracy.share` is the accuracy of the round before, which the shape `interleaved` compares with. Given texts
    are left out.
    """
    verdicts = round.rows["correct"][own_rows(round.rows)]
    known = verdicts[~np.isnan(verdicts)]
    return {"share": np.array([known.mean()]) if len(known) else before.at("share")}
