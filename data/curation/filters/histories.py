"""Filters on how a problem's accuracy went from measurement to measurement."""

from typing import Annotated, Literal

import numpy as np
from annotated_types import Le

from gradus.components import component
from gradus.components.rows import Lists, Rows
from gradus.data.arrays import Floats
from gradus.data.curation.results import Selection, selection


@component("filter", paper="arXiv 2502.11886", needs=("history",))
def limr(
    candidates: Rows,
    *,
    min: Annotated[float, Le(1.0)] = 0.6,  # noqa: A002 - the name in recipes
    unmeasured: Literal["keep", "drop"] = "keep",
) -> Selection:
    """Keep problems whose accuracy rose as that of all problems did (LIMR's learning impact measurement).

    LIMR (arXiv 2502.11886): the alignment of `alignment` is at least `min`.

    Args:
        min: Lowest alignment that is kept; 1 is the course of all problems itself.
        unmeasured: keep or drop problems that were never measured.
    """
    score, never = alignment(candidates["history"]), np.diff(candidates["history"].offsets) == 0
    return selection(
        candidates.num_rows,
        [(never & (unmeasured == "drop"), "limr: never measured"), (score < min, f"limr: alignment below {min:g}")],
    )


def alignment(history: Lists) -> Floats:
    """Return 1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2 of each accuracy history (N,), m_k the mean of all k-th ones.

    LIMR (arXiv 2502.11886). NaN for an empty history, and where every problem was always solved.
    Deviation: the k-th measurement of a problem stands for its k-th epoch, and a history that is shorter than others
    is compared as far as it goes; the authors leave out problems that lack an epoch.
    """
    lengths, rate = np.diff(history.offsets), history.values
    row = np.repeat(np.arange(len(history)), lengths)
    place = np.arange(len(rate)) - history.offsets[row]
    mean = (np.bincount(place, rate) / np.maximum(np.bincount(place), 1))[place] if len(rate) else rate
    apart, most = (np.bincount(row, each**2, len(history)) for each in (rate - mean, 1 - mean))
    return 1 - np.divide(apart, most, out=np.full(len(history), np.nan), where=most > 0)
