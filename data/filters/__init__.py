"""Filters by name: each says of every candidate problem whether it stays, and of a dropped one why.

A filter is `(candidates, **settings) -> Verdict` over the table of data.difficulty.candidates: problems with n, k,
pass_rate, variance and history beside them. Reasons are a handful of sentences per filter, so that they can be counted.
An unmeasured problem (null pass_rate) is kept by the difficulty filters unless `unmeasured="drop"`: dropping it
silently would mean that it is never measured.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from data.arrays import Bools, Ints
from data.errors import UsageError
from data.filters.difficulty import group_variance, pass_rate, zero_variance
from data.filters.length import length
from data.filters.verdict import Verdict

__all__ = ["FILTERS", "Filter", "Verdict", "apply_filters", "unknown_filter"]

Filter = Callable[..., Verdict]

FILTERS: dict[str, Filter] = {
    "pass_rate": pass_rate,
    "zero_variance": zero_variance,
    "group_variance": group_variance,
    "length": length,
}


def apply_filters(candidates: pa.Table, filters: Sequence[tuple[str, Mapping[str, Any]]]) -> Verdict:
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
    return Verdict(code, tuple(labels))


def run_filter(candidates: pa.Table, name: str, settings: Mapping[str, Any]) -> Verdict:
    """Apply one filter by name; UsageError lists what there is."""
    if name not in FILTERS:
        raise unknown_filter(name)
    function = FILTERS[name]
    known = [p for p in inspect.signature(function).parameters if p != "candidates"]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise UsageError(
            f"the filter {name} has no setting {unknown[0]!r}", hint=f"its settings are {', '.join(known)}"
        )
    return function(candidates, **settings)


def unknown_filter(name: str) -> UsageError:
    """The error for a filter that does not exist; it lists what there is."""
    return UsageError(f"there is no filter {name!r}", hint=f"the filters are {', '.join(FILTERS)}")
