"""Trackers of problems that are worth sampling again."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, Lt

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.tracked import Tracked


@component(
    "tracker", paper="arXiv 2509.19803", columns=("priority",), needs=("problem_id", "group", "reward", "origin")
)
def vcrl_bank(
    before: Tracked,
    round: Round,
    *,
    kappa: Annotated[float, Ge(0.0), Le(1.0)] = 0.3,
    momentum: Annotated[float, Ge(0.0), Lt(1.0)] = 0.9,
) -> dict[str, Any]:
    r"""Keep a bank of the problems whose groups vary enough, each with a priority (VCRL).

    VCRL (arXiv 2509.19803): a problem of normalised group variance p >= kappa enters with priority p; one that is
    there has P <- momentum P + (1 - momentum) p. Of several groups in a round the mean counts.
    Deviation: that p is the new term is a guess, and so is that a problem below kappa leaves the bank.

    Args:
        kappa: Lowest normalised variance of a problem in the bank.
        momentum: Share of the priority before that stays.
    """
    rows = round.rows
    share = normalised_group_variance(rows)
    known = ~np.isnan(share)
    first = np.unique(rows["group"][known], return_index=True)[1]
    problem, number = np.unique(rows["problem_id"][known][first].astype(str), return_inverse=True)
    mean = np.bincount(number, share[known][first], len(problem)) / np.bincount(number, minlength=len(problem))
    old = before.at("priority", problem)
    new = np.where(np.isnan(old), mean, momentum * old + (1 - momentum) * mean)
    return {"problem_id": problem, "priority": np.where(mean >= kappa, new, np.nan)}


def normalised_group_variance(rows: Rows) -> Floats:
    """Return p = G sum_i (r_i - mean)^2 / floor(G^2 / 4) of each row's group (N,), by the policy's own rewards.

    The unbiased variance over the largest that G rewards from 0 to 1 allow: k (G - k) / floor(G^2 / 4) for k ones.
    Rewards are clipped to 0..1. A group of one has 0, one without a reward NaN.
    """
    reward, by = np.where(own_rows(rows), np.clip(rows["reward"], 0.0, 1.0), np.nan), rows.by("group")
    num = by.count(reward)
    squares = by.sum((reward - by.mean(reward)) ** 2)
    found = np.divide(num * squares, num**2 // 4, out=np.zeros(len(num)), where=num > 1)
    return np.where(num > 0, found, np.nan)
