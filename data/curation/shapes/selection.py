"""Shapes that take a part of each group."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.answers import answer_key
from gradus.data.arrays import Bools, Floats, Ints


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


@component("shape", paper="arXiv 2509.24203", needs=("group", "reward"))
def drop_surplus(rows: Rows, rng: np.random.Generator) -> Mapping[str, Any]:
    """Leave out rows below the mean reward of their group, by lot, until they are no more than the others (RED-Drop).

    RED-Drop (arXiv 2509.24203), as in its code; advantages are those of the rows left. Rows without a reward count
    nowhere and stay.
    """
    reward, by = rows["reward"], rows.by("group")
    known = ~np.isnan(reward)
    below = known & by.varied(reward) & (reward < by.mean(reward))
    room = by.sum((known & ~below).astype(np.float64))
    left = below & (by.rank(np.where(below, rng.random(rows.num_rows), np.nan)) >= room)
    return {
        "taken": ~left,
        "reason": "as many rows of its group as are above the mean reward are below it",
        "surplus_frac": left,
    }


@component("shape", needs=("group", "sample"))
def best(rows: Rows, *, column: str = "reward") -> Mapping[str, Any]:
    """Take the row of each group that is highest in a column (best-of-N); of equal ones that of the lowest sample.

    In a suite it evaluates the answer that a verifier, a judge or a measure would choose. A row without a value is
    taken only if no row of its group has one.

    Args:
        column: Column of numbers to go by, such as reward, as the shapes before left it, or likelihood.logp.
    """
    order = np.lexsort((rows["sample"], -np.asarray(rows[column], dtype=np.float64), rows["group"]))
    return {"taken": _first(rows, order), "reason": f"another of its group is higher in {column}"}


@component("shape", paper="arXiv 2203.11171", needs=("group", "sample", "extracted"))
def majority(rows: Rows) -> Mapping[str, Any]:
    """Take a row of each group with its most frequent answer (self-consistency, arXiv 2203.11171).

    Of equally frequent answers that of the lowest sample counts, and the row of the lowest sample that has it. A row
    without an answer is taken only if no row of its group has one. Answers are equal as numbers, or as texts.
    """
    answers, group = [answer_key(text) for text in rows["extracted"]], rows["group"]
    voted = [(number, said) for number, said in zip(group.tolist(), answers, strict=True) if said is not None]
    count: Counter[tuple[int, str | None]] = Counter(voted)
    votes = np.array([count[number, said] for number, said in zip(group.tolist(), answers, strict=True)])
    order = np.lexsort((rows["sample"], -votes, group))
    return {"taken": _first(rows, order), "reason": "another of its group has the more frequent answer"}


def _first(rows: Rows, order: Ints) -> Bools:
    """Return which rows are the first of their group in an order of the rows that is sorted by group, (N,)."""
    found = np.zeros(rows.num_rows, dtype=np.bool_)
    found[order[np.unique(rows["group"][order], return_index=True)[1]]] = True
    return found


def most_varied(reward: Floats, num: int) -> Ints:
    """Return which `num` of some rewards (G,) have the largest variance: the highest and the lowest, (num,)."""
    order = np.argsort(-reward, kind="stable")
    choices = [np.concatenate((order[:k], order[len(order) - (num - k) :])) for k in range(num + 1)]
    return choices[int(np.argmax([np.var(reward[chosen]) for chosen in choices]))]
