"""Shapes that put given rows in the place of the policy's own."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.round import own_rows


@component("shape", paper="arXiv 2510.02227", needs=("origin", "group", "correct", "reward", "understood.score"))
def ampo(rows: Rows, *, solved: Annotated[int, Ge(0)] = 0, replaced: Annotated[int, Ge(1)] = 2) -> Mapping[str, Any]:
    """Put the given rows that the policy understands best in the place of wrong rows of a group that failed (AMPO).

    AMPO (arXiv 2510.02227): if at most `solved` own rows of a group are right, as many of its wrong rows as there are
    given ones, `replaced` at most, are left out for the given rows of the largest `understood.score`, whose reward is
    at least 1. The given rows of all other groups are left out. Trigger, order and reward are those of the authors'
    code, which replaces wrong rows at random places; here the last ones.

    Args:
        solved: Right rollouts of a group at most, for its wrong ones to be replaced.
        replaced: Rows of a group that are replaced at most.
    """
    own = own_rows(rows)
    wrong, by = own & (rows["correct"] != 1), rows.by("group")
    num_right, num_wrong, num_given = (by.sum(each.astype(np.float64)) for each in (own & ~wrong, wrong, ~own))
    num = np.where(num_right <= solved, np.minimum(np.minimum(num_given, num_wrong), replaced), 0)
    score = np.nan_to_num(rows["understood.score"], nan=-1.0)  # not measured: after those that are
    chosen = ~own & (by.rank(np.where(own, np.nan, -score)) < num)
    left = wrong & (by.rank(np.where(wrong, -np.arange(rows.num_rows), np.nan)) < num)
    return {
        "taken": np.where(own, ~left, chosen),
        "reason": np.where(own, "a given row takes its place", "own rows are right, or others are understood better"),
        "reward": np.where(chosen, np.fmax(rows["reward"], 1.0), rows["reward"]),
        "replaced_frac": np.where(own, left, np.nan),
    }
