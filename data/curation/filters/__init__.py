"""Filters by name: each says of every candidate problem whether it stays, and of a dropped one why.

A filter is `(candidates, **settings) -> Selection` over the table of gradus.data.curation.difficulty.candidates:
problems with n, k, pass_rate, variance and history beside them. Reasons are a handful of sentences per filter, so that
they can be counted. An unmeasured problem (null pass_rate) is kept by the difficulty filters unless
`unmeasured="drop"`: dropping it silently would mean that it is never measured.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Ints
from gradus.data.curation.filters.difficulty import group_variance, pass_rate, zero_variance
from gradus.data.curation.filters.length import length
from gradus.data.curation.filters.verdict import Selection
from gradus.data.errors import UsageError, shortened
from gradus.data.lake.schema import DIFFICULTY, PROBLEMS
from gradus.data.nearest import did_you_mean

__all__ = ["FILTERS", "Filter", "Selection", "apply_filters", "check_filter"]

Filter = Callable[..., Selection]

FILTERS: dict[str, Filter] = {
    "pass_rate": pass_rate,
    "zero_variance": zero_variance,
    "group_variance": group_variance,
    "length": length,
}


def apply_filters(candidates: pa.Table, filters: Sequence[tuple[str, Mapping[str, Any]]]) -> Selection:
    """Apply filters in order; a row is dropped by, and bears the reason of, the first that refuses it.

    Raises UsageError for a filter or a setting that does not exist, or a value that cannot be.
    """
    code: Ints = np.zeros(candidates.num_rows, dtype=np.int64)
    labels: list[str] = []
    for name, settings in filters:
        verdict = run_filter(candidates, name, settings)
        refused: Bools = (code == 0) & ~verdict.kept
        code[refused] = verdict.code[refused] + len(labels)
        labels.extend(verdict.labels)
    return Selection(code, tuple(labels))


def run_filter(candidates: pa.Table, name: str, settings: Mapping[str, Any]) -> Selection:
    """Apply one filter by name; UsageError lists what there is."""
    if name not in FILTERS:
        raise _unknown(name)
    function = FILTERS[name]
    known = [p for p in inspect.signature(function).parameters if p != "candidates"]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        listed = f"its settings are {', '.join(known)}"
        raise UsageError(
            f"the filter {name} has no setting {unknown[0]!r}", hint=did_you_mean(unknown[0], known, listed)
        )
    return function(candidates, **settings)


def check_filter(name: str, settings: Mapping[str, Any]) -> None:
    """UsageError for a filter or a setting that does not exist, or a value that cannot be; no row is needed."""
    columns = {column.name: column.type for column in (*DIFFICULTY.columns, *PROBLEMS.columns)}
    run_filter(pa.schema(list(columns.items())).empty_table(), name, settings)


def _unknown(name: str) -> UsageError:
    """The error for a filter that does not exist; it lists what there is."""
    listed = f"the filters are {', '.join(FILTERS)}"
    return UsageError(f"there is no filter {shortened(name)!r}", hint=did_you_mean(name, list(FILTERS), listed))
