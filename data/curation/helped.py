"""The economy of help in a round: problems that are solved with help alone, and accuracy with and without it."""

import numpy as np
import pyarrow as pa

from gradus.data.arrays import bools, codes, floats, ints, nulls, pc, positions
from gradus.data.lake.schema import OWN, ROLLOUTS

EXPLAINED = "explained"
"""Origin of explanations whose prompt states the answer (the wave `explain`)."""


def effect_of_help(scores: pa.Table, rollouts: pa.Table) -> dict[str, float]:
    """Return what help did for the problems of a round that were asked with it and without, by metric; {} for none.

    Help is a hint, or a prompt of a wave's. Given texts, continued rollouts and those taken up again count neither way,
    nor do rollouts without a verdict, and explanations of an answer that the prompt states. A rescued problem is one
    that is solved with help and never without.
    """
    at = positions(scores.column("rollout_id"), rollouts.column("rollout_id"))
    rows = rollouts.take(pa.array(np.where(at >= 0, at, 0)))
    hinted = (ints(rows.column("hint_level")) > 0) | ~nulls(ROLLOUTS.column(rows, "messages"))
    origin = pc.coalesce(ROLLOUTS.column(rows, "origin"), OWN)
    own, explained = bools(pc.equal(origin, OWN)), bools(pc.equal(origin, EXPLAINED))
    stored = ~nulls(ROLLOUTS.column(rows, "recall")) | ~nulls(ROLLOUTS.column(rows, "parent"))
    right = floats(scores.column("correct").cast(pa.int8()))
    counted = (at >= 0) & ~np.isnan(right) & (own | hinted) & ~stored & ~explained
    problem, names = codes(scores.column("problem_id"))
    asked, solved = (
        [np.bincount(problem[chosen], weights[chosen], len(names)) for chosen in (counted & hinted, counted & ~hinted)]
        for weights in (np.ones(len(right)), right)
    )
    both = (asked[0] > 0) & (asked[1] > 0)
    if not both.any():
        return {}
    return {
        "data/rescued_problems": float((both & (solved[0] > 0) & (solved[1] == 0)).sum()),
        "data/helped_accuracy": float(solved[0][both].sum() / asked[0][both].sum()),
        "data/unhelped_accuracy": float(solved[1][both].sum() / asked[1][both].sum()),
    }
