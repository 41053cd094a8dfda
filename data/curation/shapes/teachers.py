"""Shapes that put given rows in the place of the policy's own."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats, Ints
from gradus.data.lake.schema import OWN


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
    own = np.array([each in (None, OWN) for each in rows["origin"]])
    wrong = own & (rows["correct"] != 1)
    by = rows.by("group")
    stuck = by.sum((own & ~wrong).astype(np.float64)) <= solved
    num = np.minimum(np.minimum(by.sum((~own).astype(np.float64)), by.sum(wrong.astype(np.float64))), replaced)
    score = np.where(own, np.nan, np.nan_to_num(rows["understood.score"], nan=-np.inf))
    chosen = stuck & ~own & (_rank(score, by.of, ~own) < num)
    left = (
        stuck
        & wrong
        & (_rank(np.arange(len(own))[::-1].astype(np.float64), by.of, wrong) >= by.sum(wrong.astype(np.float64)) - num)
    )
    return {
        "taken": np.where(own, ~left, chosen),
        "reason": np.where(own, "a given row takes its place", "own rows are right, or others are understood better"),
        "reward": np.where(chosen, np.fmax(rows["reward"], 1.0), rows["reward"]),
        "replaced_frac": np.where(own, left, np.nan),
    }


def _rank(values: Floats, group: Ints, among: Any) -> Ints:
    """Return the rank of each row among some rows of its group, the largest value first, (N,); N for the others."""
    rank = np.full(len(values), len(values))
    rows = np.flatnonzero(among)
    order = rows[np.lexsort((rows, -values[rows], group[rows]))]
    _, first = np.unique(group[order], return_index=True)
    rank[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return rank
