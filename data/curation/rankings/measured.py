"""Rankings by what was measured of a problem: its history, its pass rate, its rewards."""

import numpy as np
import pyarrow as pa

from gradus.components import component
from gradus.data.arrays import Floats, floats, ragged


@component("ranking", paper="arXiv 2504.20571")
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


@component("ranking")
def variance(candidates: pa.Table) -> Floats:
    """Pass-rate variance p(1-p) of each problem (N,); NaN where never measured."""
    return floats(candidates.column("variance"))


@component("ranking")
def pass_rate(candidates: pa.Table) -> Floats:
    """Pass rate of each problem (N,), the easiest first; NaN where never measured."""
    return floats(candidates.column("pass_rate"))


@component("ranking")
def reward_mean(candidates: pa.Table) -> Floats:
    """Mean reward of each problem (N,), the best rewarded first; NaN where no rollout has a reward."""
    return floats(candidates.column("reward_mean"))


@component("ranking")
def reward_variance(candidates: pa.Table) -> Floats:
    """Population variance of each problem's rewards (N,); NaN where no rollout has a reward.

    For graded rewards what p(1-p) is for verdicts: a group of variance 0 has no group-relative advantage.
    """
    return floats(candidates.column("reward_variance"))
