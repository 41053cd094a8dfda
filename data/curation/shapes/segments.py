"""Shapes that credit parts of a completion."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.data.arrays import Floats
from gradus.data.curation.batch import BatchRows


@component(
    "shape",
    paper="arXiv 2505.23564",
    needs=("group", "reward", "length", "value: about", "value: reward", "value: plan.branch_at"),
)
def value_gains(rows: BatchRows) -> Mapping[str, Any]:
    """Credit each token with the change of the value across its segment (SPO-chain).

    SPO-chain (arXiv 2505.23564): A_k = V(s_k+1) - V(s_k), where V of a cut is the mean reward of the continuations
    from it (the wave `values`), that of the end is the rollout's own reward, and that of the prompt the mean reward of
    its group. A cut of which no continuation was judged is none. The advantage `credit` reads it.
    """
    said, by = rows.others("value"), rows.by("group")
    start, end, length = by.mean(rows["reward"]), np.nan_to_num(rows["reward"]), rows["length"].astype(np.int64)
    known = ~np.isnan(said["reward"]) & (said["about"][:, 0] >= 0)
    about, cut, reward = said["about"][known, 0], said["plan.branch_at"][known].astype(np.int64), said["reward"][known]
    order = np.argsort(about, kind="stable")
    ends = np.searchsorted(about[order], np.arange(rows.num_rows), side="right")
    of_rows = np.split(order, ends)[: rows.num_rows]
    return {
        "credit": [gains(cut[own], reward[own], start[row], end[row], length[row]) for row, own in enumerate(of_rows)]
    }


def gains(cut: Any, reward: Floats, start: float, end: float, length: int) -> Floats:
    """Return the value across its segment of each of `length` tokens, by the rewards (C,) of samples at cuts (C,).

    >>> gains(np.array([1, 1]), np.array([1.0, 0.0]), 0.25, 1.0, 3).tolist()
    [0.25, 0.5, 0.5]
    """
    places, number = np.unique(cut, return_inverse=True)
    values = np.bincount(number, reward, len(places)) / np.maximum(np.bincount(number, minlength=len(places)), 1)
    return np.repeat(np.diff([start, *values, end]), np.diff([0, *places, length]))
