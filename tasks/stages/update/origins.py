"""Origin of each row of an update: its author, which of its tokens carry loss, and whose log-probs can be compared.

Log-probs of rows of another origin than the policy (worked solutions, traces of a stronger model) are not compared with
the policy's.
N rows, T completion tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, bools, ints, nulls, one_array, pc, ragged
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import OWN
from gradus.tasks.config.learning import UpdateConfig

_SAMPLED = "sampled"


def is_own(table: pa.Table) -> Bools:
    """Return which rows the policy itself wrote, (N,)."""
    return bools(pc.equal(pc.coalesce(table.column("origin"), OWN), OWN))


def members(table: pa.Table, config: UpdateConfig) -> Bools:
    """Return the terms of the objective that each row belongs to, (N, terms); BadInputError for an unknown column."""
    table = table.set_column(table.column_names.index("origin"), "origin", pc.coalesce(table.column("origin"), OWN))
    found = np.ones((table.num_rows, len(config.objective)), dtype=np.bool_)
    for index, term in enumerate(config.objective):
        found[:, index] = having(table, term.rows, "update.terms")
        for name, values in term.without.items():
            found[:, index] &= ~having(table, {name: values}, "update.terms")
    return found


def having(table: pa.Table, rows: Mapping[str, object], setting: str) -> Bools:
    """Return which rows have these values, of several one, (N,); BadInputError for an unknown column."""
    found = np.ones(table.num_rows, dtype=np.bool_)
    for name, values in rows.items():
        if name not in table.column_names:
            known = ", ".join(sorted(table.column_names))
            raise BadInputError(f"{setting}: rows have no column {name}", hint=f"take one of {known}")
        column = table.column(name)
        try:
            wanted = pa.array(values if isinstance(values, tuple) else [values]).cast(column.type)
            found &= bools(pc.is_in(column, value_set=wanted))
        except pa.ArrowException:
            what = f"{setting}: {values!r} is no value of the column {name}, which is {column.type}"
            raise BadInputError(what, hint="correct it") from None
    return found


def needs_sampler(table: pa.Table, config: UpdateConfig) -> Bools:
    """Return which rows need the log-probs of a sampler, (N,)."""
    of_term = np.array([each.loss.component.needs_sampler for each in config.objective])
    return np.logical_or.reduce(members(table, config) & of_term, axis=1)


def trained_tokens(table: pa.Table) -> Bools | None:
    """Return which tokens carry loss, (T,); None if all do."""
    return None if nulls(table.column("spans")).all() else _of_tokens(table, "trained")


def compared_tokens(table: pa.Table) -> Bools | None:
    """Return the tokens that the policy sampled after the prompt that they are trained for, (T,); None if all are."""
    rows = is_own(table) & nulls(table.column("trained_prompt_tokens"))
    sampled = nulls(table.column("spans")).all() or _of_tokens(table, "source")
    if rows.all() and np.all(sampled):
        return None
    return np.repeat(rows, ints(pc.list_value_length(one_array(table.column("completion_tokens"))))) & sampled


def _of_tokens(table: pa.Table, what: str) -> Bools:
    """`trained`, or whether the source is sampled, of every token; true in rows without spans (see `refuse_spans`)."""
    lengths = ints(pc.list_value_length(one_array(table.column("completion_tokens"))))
    offsets, spans = ragged(table.column("spans"))
    start, end = ints(spans.field("start")), ints(spans.field("end"))
    if what == "trained":
        value = bools(spans.field("trained"), null=True)
    else:
        value = bools(pc.equal(pc.coalesce(spans.field("source"), _SAMPLED), _SAMPLED))
    found = np.ones(int(lengths.sum()), dtype=np.bool_)
    found[np.repeat(np.diff(offsets) > 0, lengths)] = np.repeat(value, end - start)  # spans cover the tokens of a row
    return found


def refuse_spans(table: pa.Table, rows: Sequence[str]) -> None:
    """Raise BadInputError naming the first row whose spans do not cover its tokens one after the other."""
    offsets, spans = ragged(table.column("spans"))
    counts = np.diff(offsets)
    given = np.flatnonzero(counts)
    lengths = ints(pc.list_value_length(one_array(table.column("completion_tokens"))))
    start, end = ints(spans.field("start"), null=-1), ints(spans.field("end"), null=-1)
    bad = np.zeros(len(counts), dtype=np.bool_)
    row = np.repeat(np.arange(len(counts)), counts)
    bad[row[end < start]] = True
    inner = np.flatnonzero(row[1:] == row[:-1])
    bad[row[inner[end[inner] != start[inner + 1]]]] = True
    bad[given] |= (start[offsets[given]] != 0) | (end[offsets[given + 1] - 1] != lengths[given])
    bad |= ~nulls(table.column("spans")) & (counts == 0) & (lengths > 0)
    if bad.any():
        raise BadInputError(
            f"rollout {rows[int(np.argmax(bad))]} has spans that do not cover its completion_tokens",
            hint="write start and end of each span so that the first begins at 0 and each begins where another ended",
        )
