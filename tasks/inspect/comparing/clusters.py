"""The problems of a comparison, and which belong together: those of one template, source or domain, by a column."""

import json

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints
from gradus.data.errors import BadInputError
from gradus.data.intervals import by_cluster
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.comparing.trainings import problem_rows

TEMPLATE = "template"
"""The column that is taken unless another is named: problems written from one template are not independent."""
_FEW = 10


def units(values: Floats, cluster: Ints | None) -> Floats:
    """Return the values (S, U) of what is independent: clusters of problems, or problems if `cluster` is None."""
    return values if cluster is None else by_cluster(values, cluster)


def num_clusters(cluster: Ints) -> int:
    """Return the number of clusters 0..G-1."""
    return int(cluster.max()) + 1


def clusters_of(store: Store, evaluation: Ref, problems: pa.Array, column: str) -> Ints | None:
    """Return the cluster of each problem (P,), 0..G-1; None if problems have no column `template` and none is named.

    The column is one of the problems table or a key of their `extra`. A problem without a value is a cluster by
    itself. Raise BadInputError if a column that is named does not exist, or is the same for all problems.
    """
    values = _values(store, evaluation, problems, column or TEMPLATE)
    named = [f"{at} alone" if value is None else f" {value}" for at, value in enumerate(values)]
    if len(set(named)) > 1:
        return np.unique(named, return_inverse=True)[1].astype(np.int64)
    if column and values:
        raise BadInputError(
            f"--cluster {column}: it is the same for all problems", hint="leave the option out: nothing is clustered"
        )
    if column:
        raise BadInputError(
            f"--cluster {column}: the evaluated problems have no such column",
            hint="name a column of the problems, or a key of their `extra` (`gradus show`)",
        )
    return None


def remarks_on(cluster: Ints | None, column: str) -> list[str]:
    """Remark on what an interval over clusters rests on."""
    if cluster is None:
        return []
    num = num_clusters(cluster)
    text = f"intervals are over {num} clusters of problems ({column or TEMPLATE}), not over {len(cluster)} problems"
    return [f"{text}; so few clusters make them wide" if num < _FEW else text]


def _values(store: Store, evaluation: Ref, problems: pa.Array, column: str) -> list[str | None]:
    """Return a column of the evaluated problems as texts; empty if there is none."""
    rows = problem_rows(store, evaluation, problems, list(dict.fromkeys(("problem_id", column, "extra"))))
    if rows is None:
        return []
    if column in rows.column_names:
        values = rows.column(column).to_pylist()
    else:
        extras = [json.loads(text or "{}") for text in rows.column("extra").to_pylist()]
        values = [extra.get(column) if isinstance(extra, dict) else None for extra in extras]
    found = [None if value is None else str(value) for value in values]
    return found if any(value is not None for value in found) else []
