"""Rankings of candidate problems by one number each, highest first: `(candidates, *, settings) -> (N,) numbers`.

    rank(candidates, historical_std)     # row indices, best first

Ties are broken by problem_id, and rows without the number (never measured) come last, in problem_id order too.
Scores are compared at 12 decimals, so that the same history in another order is a tie and not a rounding error apart.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints, ints, pc

Ranking = Callable[[pa.Table], Floats]

DECIMALS = 12
"""Scores that are equal so far rank alike: the smaller id comes first."""


def rank(candidates: pa.Table, ranking: Ranking) -> tuple[Ints, Floats]:
    """Return row indices from the highest score to the lowest (N,), and the scores of the rows in table order (N,)."""
    scores = ranking(candidates)
    keys = pa.table(
        {
            "score": pa.array(np.round(scores, DECIMALS), mask=np.isnan(scores)),
            "problem_id": candidates.column("problem_id"),
        }
    )
    order = pc.sort_indices(keys, sort_keys=[("score", "descending", "at_end"), ("problem_id", "ascending", "at_end")])
    return ints(order), scores
