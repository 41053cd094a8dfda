"""A wave that takes up again rollouts of earlier rounds."""

from typing import Annotated

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.data.curation.round import Planned, Round, first_rows


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
