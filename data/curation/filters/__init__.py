"""Filters: each says of every candidate problem whether it stays, and of a dropped one why.

A filter is `(candidates, *, settings) -> Selection` over the table of gradus.data.curation.difficulty.candidates:
problems with n, k, pass_rate, variance and history beside them. Reasons are a handful of sentences per filter, so that
they can be counted. An unmeasured problem (null pass_rate) is kept by the difficulty filters unless
`unmeasured="drop"`: dropping it silently would mean that it is never measured.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Ints
from gradus.data.curation.filters.length import PROMPT_TOKENS
from gradus.data.curation.filters.verdict import Selection
from gradus.data.lake.schema import DIFFICULTY, PROBLEMS

__all__ = ["Filter", "Selection", "apply_filters", "no_candidates"]

Filter = Callable[[pa.Table], Selection]


def apply_filters(candidates: pa.Table, filters: Sequence[Filter]) -> Selection:
    """Apply filters in order; a row is dropped by, and bears the reason of, the first that refuses it."""
    code: Ints = np.zeros(candidates.num_rows, dtype=np.int64)
    labels: list[str] = []
    for each in filters:
        verdict = each(candidates)
        refused: Bools = (code == 0) & ~verdict.kept
        code[refused] = verdict.code[refused] + len(labels)
        labels.extend(verdict.labels)
    return Selection(code, tuple(labels))


def no_candidates() -> pa.Table:
    """Return a table of candidates without rows: enough for a filter to refuse settings that contradict each other."""
    columns = {column.name: column.type for column in (*DIFFICULTY.columns, *PROBLEMS.columns)}
    return pa.schema([*columns.items(), (PROMPT_TOKENS, pa.int64())]).empty_table()
