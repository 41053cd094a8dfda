"""Trackers of how well the policy does on the problems of a domain."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from gradus.components import component
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked


@component("tracker", paper="arXiv 2506.08672", by=("problem.domain",), columns=("reward",), needs=("reward", "origin"))
def dads(before: Tracked, round: Round, *, keep: Annotated[float, Ge(0.0), Lt(1.0)] = 0.5) -> dict[str, Any]:
    """Keep a moving average of the mean reward of each domain (RuleReasoner's domain-aware dynamic sampling).

    RuleReasoner (arXiv 2506.08672): r_d <- keep r_d + (1 - keep) mean reward of the round, of every domain that was
    sampled. Given texts, and rows without a reward or a domain, do not count.
    Deviation: a domain begins with its first mean.

    Args:
        keep: Share of what was known that stays (the paper's alpha).
    """
    rows = round.rows
    counted = own_rows(rows) & ~np.isnan(rows["reward"])
    counted &= np.array([each is not None for each in rows["problem.domain"]], dtype=np.bool_)
    domain, number = np.unique(rows["problem.domain"][counted].astype(str), return_inverse=True)
    mean = np.bincount(number, rows["reward"][counted], len(domain)) / np.bincount(number, minlength=len(domain))
    known = before.at("reward", domain)
    return {"problem.domain": domain, "reward": np.where(np.isnan(known), mean, keep * known + (1 - keep) * mean)}
