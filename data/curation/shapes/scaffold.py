"""Shapes that let a rollout which a hint has helped stand among those without."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, MinLen

from gradus.components import component
from gradus.data.curation.batch import BatchRows


@component("shape", paper="dvlab-research/Scaf-GRPO", needs=("group", "problem_id", "correct", "hint_level"))
def scaffold(rows: BatchRows, *, replaced: Annotated[int, Ge(1)] = 1) -> Mapping[str, Any]:
    """Let the first right rollouts that a hint has helped take the place of failed ones in the group without hints.

    Scaf-GRPO: of a problem whose every rollout failed, hints are shown from the most abstract to the most concrete; at
    the first level with a right rollout it replaces a failed one of the group, and the group is learned from as it is
    then. The other hinted rollouts are left out. So is nothing of a problem that no hint has helped: its group stays,
    without variance. Needs `update.drop_replaced_groups = false`.
    Deviation: the rollout is trained after the prompt with its hint, from which it was sampled.

    Args:
        replaced: Failed rollouts of a group that are replaced at most.
    """
    group, level, right = rows["group"].copy(), np.nan_to_num(rows["hint_level"]), rows["correct"] == 1
    _, problem = np.unique(rows["problem_id"], return_inverse=True)
    hinted = level > 0
    taken = ~hinted
    for each in np.unique(problem[hinted & right]):
        own = np.flatnonzero((problem == each) & ~hinted)
        helped = np.flatnonzero((problem == each) & hinted & right)
        helped = helped[level[helped] == level[helped].min()][: min(replaced, len(own))]
        if not right[own].any():
            taken[own[: len(helped)]] = False
            taken[helped] = True
            group[helped] = group[own[0]] if len(own) else group[helped]
    reason = np.where(hinted, "it was shown a hint", "a rollout that a hint has helped takes its place")
    return {"taken": taken, "reason": reason, "group": group}


@component("shape", paper="arXiv 2510.26519", needs=("origin", "correct", "reward"))
def icpo(
    rows: BatchRows, *, bonus: Annotated[float, Ge(0.0)] = 0.0, origin: Annotated[str, MinLen(1)] = "exemplified"
) -> Mapping[str, Any]:
    """Leave out wrong rollouts behind worked examples, and add a bonus to the reward of the right ones (ICPO).

    ICPO (arXiv 2510.26519), expert region reject sampling: a rollout behind examples stays only if it is right; then
    R' = R + alpha g(step), with g falling from 1 to 0. The bonus is alpha g, a schedule of the recipe.

    Args:
        bonus: Added to the reward of a right rollout behind examples.
        origin: Origin of these rollouts.
    """
    behind = np.array([each == origin for each in rows["origin"]], dtype=np.bool_)
    right = rows["correct"] == 1
    return {
        "taken": ~behind | right,
        "reason": "it is wrong although it was shown examples",
        "reward": np.where(behind & right, rows["reward"] + bonus, rows["reward"]),
        "kept_frac": np.where(behind, right, np.nan),
    }
