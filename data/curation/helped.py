"""The economy of help in a round: problems that are solved with help alone, and accuracy with and without it."""

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Ints, bools, codes, floats, ints, nulls, pc, positions, ragged
from gradus.data.lake.schema import OWN, ROLLOUTS

EXPLAINED = "explained"
"""Origin of explanations whose prompt states the answer (the wave `explain`)."""


def effect_of_help(scores: pa.Table, rollouts: pa.Table) -> dict[str, float]:
    """Return what help did for the problems of a round that were asked with it and without, by metric; {} for none.

    Help is a hint, or a prompt of a wave's. Given texts, continued rollouts and those taken up again count neither way,
    nor do rollouts without a verdict, and explanations of an answer that the prompt states. A rescued problem is one
    that is solved with help and never without. Tokens of help are those that prompts with help have beyond the
    problem's own, summed over rollouts; they are counted if `rollouts` have `prompt_tokens`.
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
    tokens = _tokens_of_help(rows, problem, counted & hinted, counted & ~hinted, both)
    return {
        **({} if tokens is None else {"data/help_tokens": tokens}),
        "data/rescued_problems": float((both & (solved[0] > 0) & (solved[1] == 0)).sum()),
        "data/helped_accuracy": float(solved[0][both].sum() / asked[0][both].sum()),
        "data/unhelped_accuracy": float(solved[1][both].sum() / asked[1][both].sum()),
    }


def has_help(rollouts: pa.Table) -> bool:
    """Return whether any rollout was shown a hint or a prompt of a wave's."""
    hinted = (ints(rollouts.column("hint_level")) > 0).any()
    return bool(hinted) or not nulls(ROLLOUTS.column(rollouts, "messages")).all()


def _tokens_of_help(rows: pa.Table, problem: Ints, helped: Bools, bare: Bools, both: Bools) -> float | None:
    """Return how many prompt tokens help added to problems asked both ways; None if prompts have no tokens.

    `problem` are numbers of problems (N,), `helped` and `bare` which rows had help and which had none (N,), `both`
    which problems were asked both ways (P,).
    """
    offsets, _ = ragged(ROLLOUTS.column(rows, "prompt_tokens"))
    length = np.diff(offsets).astype(np.float64)
    if not length[bare & both[problem]].all() or not length[helped & both[problem]].all():
        return None
    with_help, without = (np.bincount(problem[rows_], length[rows_], len(both)) for rows_ in (helped, bare))
    asked, alone = (np.bincount(problem[rows_], minlength=len(both)) for rows_ in (helped, bare))
    return float((with_help - asked * without / np.maximum(alone, 1))[both].sum())
