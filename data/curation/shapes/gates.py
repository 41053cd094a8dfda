"""Shapes that choose between a group and what else could be learned in its place."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.round import own_rows


@component("shape", paper="arXiv 2509.04419", needs=("origin", "group", "correct"))
def hpt(rows: Rows, *, solved: Annotated[int, Ge(0)] = 0) -> Mapping[str, Any]:
    """Learn from a group, or from its demonstrations if at most `solved` of its own rows are right (HPT).

    HPT (arXiv 2509.04419): P <= gate takes the demonstration under supervised fine-tuning, else the rollouts under the
    group's advantages; the terms `policy` and `demonstration` name both. A group without a demonstration is learned
    from as it is. Advantages are those of the policy's own rows alone, since the others are left out.

    Args:
        solved: Right rollouts of a group at most, for its demonstrations to take its place.
    """
    own = own_rows(rows)
    by = rows.by("group")
    num_right, num_given = (by.sum(each.astype(np.float64)) for each in (own & (rows["correct"] == 1), ~own))
    stuck = (num_right <= solved) & (num_given > 0)
    return {
        "taken": np.where(own, ~stuck, stuck),
        "reason": np.where(own, "its demonstration is learned in place of its group", "its group is learned"),
        "term": np.where(own, "policy", "demonstration"),
        "stuck_frac": np.where(own, stuck, np.nan),
    }
