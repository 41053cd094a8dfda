"""Waves that take up again rollouts of earlier rounds, or problems that were worth it."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.data.arrays import positions
from gradus.data.curation.round import Planned, Round, first_rows
from gradus.data.curation.trackers.banks import normalised_group_variance


@component("wave", paper="arXiv 2504.08837", needs=("group", "reward", "stored"))
def replay(
    round: Round,
    rng: np.random.Generator,
    *,
    alpha: Annotated[float, Ge(0.0)] = 1.0,
    groups: Annotated[int, Ge(0)] = 0,
) -> Planned | None:
    """Take up again informative groups of earlier rounds, one for each group of this round without variance.

    Selective sample replay of VL-Rethinker (arXiv 2504.08837): P(j) = |A_j|^alpha / sum_k |A_k|^alpha over the stored
    rollouts, with A = (r - mean) / std of their group.
    Deviation: a group is drawn, by the sum over its rollouts, without replacement, and taken up whole, so that its
    advantages stay what they were; the authors draw single rollouts and keep the advantages of old.

    Args:
        alpha: Sharpness of the draw; 0 draws informative groups alike.
        groups: Groups that are taken up; 0 for as many as have no variance in their rewards.
    """
    rows, stored = round.rows, round.stored()
    flat = len(first_rows(rows, ~rows.by("group").varied(rows["reward"])))
    by, reward = stored.by("group"), stored["reward"]
    spread = by.std(reward)
    advantage = np.divide(reward - by.mean(reward), spread, out=np.zeros(len(reward)), where=spread > 0)
    weight = by.sum(np.where(spread > 0, np.abs(advantage) ** alpha, 0.0))
    first = first_rows(stored, spread > 0)
    num = min(groups or flat, len(first))
    if not num:
        return None
    drawn = rng.choice(first, num, replace=False, p=weight[first] / weight[first].sum())
    chosen = np.flatnonzero(np.isin(stored["group"], stored["group"][drawn]))
    return round.plan(
        recall=stored["rollout_id"][chosen],
        reason=[
            f"replayed from round {r}: advantage {a:.3f}"
            for r, a in zip(stored["round"][chosen], advantage[chosen], strict=True)
        ],
    )


@component("wave", paper="arXiv 2509.19803", needs=("group", "reward", "origin", "vcrl_bank.priority"))
def vcrl(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - the highest priorities are taken
    *,
    kappa: Annotated[float, Ge(0.0), Le(1.0)] = 0.3,
) -> Planned | None:
    """Sample a problem of the bank for each group whose rewards vary too little, the highest priority first (VCRL).

    VCRL (arXiv 2509.19803): queries of normalised variance below kappa are replaced by those of the memory bank, which
    the tracker `vcrl_bank` keeps and the shape `vcrl` leaves room for. Of equal priorities the first problem is taken.
    Deviation: new completions are sampled, so that all rows are of one policy; whether the authors keep the old ones is
    not known.

    Args:
        kappa: Normalised variance below which a group is replaced.
    """
    rows, pool = round.rows, round.candidates
    share = normalised_group_variance(rows)
    flat = len(first_rows(rows, share < kappa))
    if not flat:
        return None
    planned = positions(pool.table.column("problem_id"), rows.table.column("problem_id")) >= 0
    priority = np.where(planned, np.nan, pool["vcrl_bank.priority"])
    best = np.argsort(-priority, kind="stable")[: int((~np.isnan(priority)).sum())]
    chosen = best[:flat]
    return round.plan(
        problems=chosen,
        reason=[f"from the bank: priority {each:.3f}" for each in priority[chosen]],
        skipped={"the bank has no other problem": flat - len(chosen)} if len(chosen) < flat else {},
    )
