"""Rankings by what was measured of a problem: its history, its pass rate, its rewards."""

import numpy as np

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats
from gradus.data.curation.filters.histories import alignment
from gradus.data.errors import UsageError


@component("ranking", paper="arXiv 2504.20571", needs=("history",))
def historical_std(candidates: Rows) -> Floats:
    """Population standard deviation (ddof 0) of each problem's accuracy history (N,); NaN for an empty history.

    The historical variance score of 1-shot RLVR (arXiv 2504.20571): the variance of a problem's training accuracy over
    the epochs; its square root has the same order. Histories may have any lengths; that of one entry is 0.
    """
    history = candidates["history"]
    lengths, flat = np.diff(history.offsets), history.values
    row = np.repeat(np.arange(candidates.num_rows), lengths)
    count = np.where(lengths > 0, lengths, np.nan)
    mean = np.bincount(row, weights=flat, minlength=candidates.num_rows) / count
    squares = np.bincount(row, weights=(flat - mean[row]) ** 2, minlength=candidates.num_rows)
    return np.sqrt(squares / count)


@component("ranking", paper="arXiv 2502.11886", needs=("history",))
def limr(candidates: Rows) -> Floats:
    """Alignment of each problem's accuracy history with the mean of all (N,), at most 1; NaN for an empty history.

    The score of LIMR's learning impact measurement (arXiv 2502.11886); see the filter `limr`.
    """
    return alignment(candidates["history"])


@component("ranking", needs=())
def column(candidates: Rows, *, column: str, lowest: bool = False) -> Floats:
    """Value of any column of numbers (N,), highest first; NaN for null.

    Args:
        column: Column of numbers to go by, such as pass_rate, problem.level or irt.difficulty.
        lowest: True for the lowest first (easy to hard, by a level).
    """
    found = candidates[column]
    try:
        value = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"problems cannot be ranked by {column}, which holds no numbers", hint="name a column of numbers"
        ) from None
    return -value if lowest else value


@component("ranking", needs=("variance",))
def variance(candidates: Rows) -> Floats:
    """Pass-rate variance p(1-p) of each problem (N,); NaN where never measured."""
    return candidates["variance"]


@component("ranking", needs=("pass_rate",))
def pass_rate(candidates: Rows) -> Floats:
    """Pass rate of each problem (N,), the easiest first; NaN where never measured."""
    return candidates["pass_rate"]


@component("ranking", needs=("reward_mean",))
def reward_mean(candidates: Rows) -> Floats:
    """Mean reward of each problem (N,), the best rewarded first; NaN where no rollout has a reward."""
    return candidates["reward_mean"]


@component("ranking", needs=("reward_variance",))
def reward_variance(candidates: Rows) -> Floats:
    """Population variance of each problem's rewards (N,); NaN where no rollout has a reward.

    For graded rewards what p(1-p) is for verdicts: a group of variance 0 has no group-relative advantage.
    """
    return candidates["reward_variance"]
