"""Filters on how hard a problem was for the policy: pass-rate band, zero variance, normalised group variance."""

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Bools, Floats
from gradus.data.curation.results import Selection, selection
from gradus.data.errors import UsageError

Unmeasured = Literal["keep", "drop"]


@component("filter", paper="arXiv 2504.03380", needs=("pass_rate",))
def pass_rate(candidates: Rows, *, low: float = 0.0, high: float = 1.0, unmeasured: Unmeasured = "keep") -> Selection:
    """Keep problems whose pass rate lies in [low, high], both ends included.

    Online Difficulty Filtering, arXiv 2504.03380 (its balanced variant is high = 1 - low). Deviation: the rate is that
    of the difficulty table, whenever measured, and no further prompts are sampled to refill the batch.

    Args:
        low: Lowest pass rate that is kept.
        high: Highest pass rate that is kept.
        unmeasured: keep or drop problems that were never measured.
    """
    if low > high:
        raise UsageError(f"pass_rate: low={low:g} is above high={high:g}, which keeps nothing")
    rate = candidates["pass_rate"]
    return selection(
        candidates.num_rows,
        [
            (_unmeasured(candidates, unmeasured), "pass_rate: never measured"),
            (rate < low, f"pass_rate: below {low:g}"),
            (rate > high, f"pass_rate: above {high:g}"),
        ],
    )


@component("filter", paper="arXiv 2503.14476", needs=("pass_rate",))
def zero_variance(candidates: Rows, *, unmeasured: Unmeasured = "keep") -> Selection:
    """Drop problems that were answered all wrong or all right: a group-relative advantage of them is zero.

    The offline form of DAPO's dynamic sampling (arXiv 2503.14476, 0 < correct < G).

    Args:
        unmeasured: keep or drop problems that were never measured.
    """
    rate = candidates["pass_rate"]
    return selection(
        candidates.num_rows,
        [
            (_unmeasured(candidates, unmeasured), "zero_variance: never measured"),
            (rate == 0, "zero_variance: all wrong"),
            (rate == 1, "zero_variance: all right"),
        ],
    )


@component("filter", paper="arXiv 2509.19803", needs=("n", "k", "pass_rate"))
def group_variance(
    candidates: Rows,
    *,
    min: Annotated[float, Ge(0.0), Le(1.0)] = 0.0,  # noqa: A002 - the name in recipes
    unmeasured: Unmeasured = "keep",
) -> Selection:
    """Keep problems whose normalised group variance is at least `min` (0 to 1).

    VCRL (arXiv 2509.19803): the unbiased variance of G 0/1 rewards over the largest that G allows,
    k(G-k)/floor(G^2/4). For even G this is p(1-p)/0.25. A group of one has variance 0.
    Deviation: by the last measurement of a problem; the shape and the wave `vcrl` go by the round's own groups.

    Args:
        min: Lowest normalised variance that is kept, 0 to 1.
        unmeasured: keep or drop problems that were never measured.
    """
    share = normalised_variance(candidates)
    return selection(
        candidates.num_rows,
        [
            (_unmeasured(candidates, unmeasured), "group_variance: never measured"),
            (share < min, f"group_variance: below {min:g}"),
        ],
    )


def normalised_variance(candidates: Rows) -> Floats:
    """k(n-k)/floor(n^2/4) per problem (N,): 0 for a group of one, NaN where nothing was measured.

    Of a pass rate p of an unknown number of rollouts it is that of an even number, 4p(1-p).
    """
    n, k, rate = candidates["n"], candidates["k"], candidates["pass_rate"]
    share = np.where(n > 0, 0.0, 4 * rate * (1 - rate))
    return np.divide(k * (n - k), n * n // 4, out=share, where=n > 1)


def _unmeasured(candidates: Rows, unmeasured: Unmeasured) -> Bools:
    """The unmeasured rows to drop, (N,)."""
    if unmeasured == "keep":
        return np.zeros(candidates.num_rows, dtype=np.bool_)
    return np.isnan(candidates["pass_rate"])
