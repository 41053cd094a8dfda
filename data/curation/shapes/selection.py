"""Shapes that learn from a part of each group."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats, Ints


@component("shape", paper="arXiv 2504.13818", needs=("group", "reward"))
def pods(rows: Rows, *, frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.25) -> Mapping[str, Any]:
    """Learn from the share of each group whose rewards have the largest variance (PODS, max-variance down-sampling).

    PODS (arXiv 2504.13818): of the m rows taken the k of the highest reward and the m - k of the lowest, where k
    maximises the variance. Of equal variances the smallest k, of equal rewards the earlier row is taken. Advantages are
    those of the rows taken. Rows without a reward are left out.

    Args:
        frac: Share of a group's rows that is taken, rounded up; at least two rows are.
    """
    group, reward = np.asarray(rows["group"]), rows["reward"]
    taken = np.zeros(rows.num_rows, dtype=np.bool_)
    for number in np.unique(group):
        members = np.flatnonzero((group == number) & ~np.isnan(reward))
        if len(members):
            num = min(len(members), max(2, int(np.ceil(frac * len(members)))))
            taken[members[most_varied(reward[members], num)]] = True
    return {"taken": taken, "reason": "others of its group have rewards of a larger variance"}


def most_varied(reward: Floats, num: int) -> Ints:
    """Return which `num` of some rewards (G,) have the largest variance: the highest and the lowest, (num,)."""
    order = np.argsort(-reward, kind="stable")
    choices = [np.concatenate((order[:k], order[len(order) - (num - k) :])) for k in range(num + 1)]
    return choices[int(np.argmax([np.var(reward[chosen]) for chosen in choices]))]
