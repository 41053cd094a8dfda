"""Rankings of candidate problems by one number each, highest first.

    rank(candidates, "historical_std")     # row indices, best first

Ties are broken by problem_id, and rows without the number (never measured) come last, in problem_id order too.
Scores are compared at 12 decimals, so that the same history in another order is a tie and not a rounding error apart.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints, floats, ints, pc, ragged
from gradus.data.errors import UsageError

_DECIMALS = 12


def historical_std(candidates: pa.Table) -> Floats:
    """Population standard deviation (ddof 0) of each problem's accuracy history (N,); NaN for an empty history.

    The historical variance score of 1-shot RLVR (arXiv 2504.20571): the variance of a problem's training accuracy over
    the epochs; its square root ranks alike. Histories may be of any lengths; one entry gives 0.
    """
    offsets, values = ragged(candidates.column("history"))
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(candidates.num_rows), lengths)
    count = np.where(lengths > 0, lengths, np.nan)
    flat = floats(values)
    mean = np.bincount(row, weights=flat, minlength=candidates.num_rows) / count
    squares = np.bincount(row, weights=(flat - mean[row]) ** 2, minlength=candidates.num_rows)
    return np.sqrt(squares / count)


def variance(candidates: pa.Table) -> Floats:
    """Pass-rate variance p(1-p) of each problem (N,); NaN where never measured."""
    return floats(candidates.column("variance"))


def pass_rate(candidates: pa.Table) -> Floats:
    """Pass rate of each problem (N,), the easiest first; NaN where never measured."""
    return floats(candidates.column("pass_rate"))


def reward_mean(candidates: pa.Table) -> Floats:
    """Mean reward of each problem (N,), the best rewarded first; NaN where no rollout has a reward."""
    return floats(candidates.column("reward_mean"))


def reward_variance(candidates: pa.Table) -> Floats:
    """Population variance of each problem's rewards (N,); NaN where no rollout has a reward.

    For graded rewards what p(1-p) is for verdicts: a group of variance 0 has no group-relative advantage.
    """
    return floats(candidates.column("reward_variance"))


RANKINGS: dict[str, Callable[[pa.Table], Floats]] = {
    "historical_std": historical_std,
    "variance": variance,
    "pass_rate": pass_rate,
    "reward_mean": reward_mean,
    "reward_variance": reward_variance,
}


def rank(candidates: pa.Table, name: str) -> tuple[Ints, Floats]:
    """Row indices from the highest score to the lowest (N,), and the scores of the rows in table order (N,).

    Raises UsageError for a ranking that does not exist.
    """
    if name not in RANKINGS:
        raise UsageError(f"there is no ranking {name!r}", hint=f"the rankings are {', '.join(RANKINGS)}")
    scores = RANKINGS[name](candidates)
    keys = pa.table(
        {
            "score": pa.array(np.round(scores, _DECIMALS), mask=np.isnan(scores)),
            "problem_id": candidates.column("problem_id"),
        }
    )
    order = pc.sort_indices(keys, sort_keys=[("score", "descending", "at_end"), ("problem_id", "ascending", "at_end")])
    return ints(order), scores
