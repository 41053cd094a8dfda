"""Trackers of how much is learned from the problems of a kind."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le

from gradus.components import component
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked


@component(
    "tracker",
    paper="arXiv 2505.14970",
    by=("problem.domain",),
    columns=("gain",),
    needs=("reward", "group", "origin"),
)
def sec(before: Tracked, round: Round, *, rate: Annotated[float, Gt(0.0), Le(1.0)] = 0.5) -> dict[str, Any]:
    """Keep the absolute advantage that each domain's rollouts had of late: an arm of a bandit (SEC).

    SEC (arXiv 2505.14970): Q <- Q + rate (g - Q) of every domain that was sampled, from Q = 0, where g is the mean of
    |r - mean(r)| / std(r) within a group, 0 if all are equal. Given texts, and rows without a reward or a domain, do
    not count.

    Args:
        rate: Weight of the newest round.
    """
    rows = round.rows
    reward = np.where(own_rows(rows), rows["reward"], np.nan)
    by = rows.by("group")
    spread = np.where(by.varied(reward), by.std(reward), np.inf)
    advantage = np.abs(reward - by.mean(reward)) / spread
    counted = ~np.isnan(reward) & np.array([each is not None for each in rows["problem.domain"]], dtype=np.bool_)
    domain, number = np.unique(rows["problem.domain"][counted].astype(str), return_inverse=True)
    gain = np.bincount(number, advantage[counted], len(domain)) / np.bincount(number, minlength=len(domain))
    kept = before.at("gain", domain, default=0.0)
    return {"problem.domain": domain, "gain": kept + rate * (gain - kept)}
