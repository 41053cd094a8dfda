"""Texts of a file, several a problem, as measures of them and waves see them.

rows = TraceRows(pa.table({"trace_id": ..., "problem_id": ..., "text": ..., "source": ...}))
highest(rows, "given_likelihood.logp")     # of each problem the text that is highest in a column
"""

from collections.abc import Collection
from typing import ClassVar

import numpy as np
import pyarrow as pa

from gradus.components.rows import ColumnError
from gradus.data.arrays import codes
from gradus.data.lake.schema import OF_PROBLEM, ROLLOUTS
from gradus.data.lake.store import Ref, Store
from gradus.data.table_rows import TableRows

TRACE = "trace_id"
"""The key column: the number of a text's row among those of its file that are kept."""


class TraceRows(TableRows):
    """(T,) texts of a file, with the columns of their problems beside them where those are read."""

    extra: ClassVar[str] = f"{OF_PROBLEM}extra"
    known: ClassVar[Collection[str]] = (TRACE, "problem_id", "text", "source")


def traces_of(store: Store, ref: Ref, problems: pa.Array) -> TraceRows:
    """Return the texts of some problems, by their ids, in the order of the file."""
    found = store.rows_with(ref, "problem_id", problems, ("rollout_id", "problem_id", "completion", "source"))
    named = {TRACE: found["rollout_id"], "problem_id": found["problem_id"], "text": found["completion"]}
    return TraceRows(pa.table({**named, "source": ROLLOUTS.column(found, "source")}))


def highest(rows: TraceRows, column: str) -> TraceRows:
    """Return the text of each problem that is highest in a column, the first of equal ones, in the order of the file.

    A text without a value is returned only if none of its problem has one. Raise ColumnError for a column that is no
    number.
    """
    values = rows[column]
    if not (isinstance(values, np.ndarray) and values.dtype.kind in "if"):
        raise ColumnError(f"{column} is no number")
    problem, _ = codes(rows.arrow("problem_id"))
    order = np.lexsort((-values, problem))  # NaN comes last, and equal values stay in their order
    first = order[np.unique(problem[order], return_index=True)[1]]
    return rows.select(np.sort(first))
