"""A filter that is a condition in SQL."""

import re
from typing import Any, Literal

import pyarrow as pa

from gradus.components import component
from gradus.components.chosen import dotted
from gradus.components.rows import Rows
from gradus.data.arrays import Column, bools, nulls
from gradus.data.curation.candidates import MADE
from gradus.data.curation.results import Selection, selection
from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.lake.queries import Relation, select

_ROW, _MET = "row_number_", "met_"
_UNREAD = ("extra", *MADE)
_UNSTEADY = "select distinct function_name from duckdb_functions() where stability <> 'CONSISTENT'"
_OF_NOW = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}


@component(
    "filter",
    needs=(
        "problem_id",
        "question",
        "messages",
        "answer",
        "solution",
        "domain",
        "source",
        "answer_given",
        "n",
        "k",
        "pass_rate",
        "variance",
        "last_round",
        "history",
        "policies",
        "alpha",
        "beta",
        "reward_n",
        "reward_mean",
        "reward_variance",
        "reward_policy",
    ),
)
def where(candidates: Rows, *, condition: str, unknown: Literal["keep", "drop"] = "keep") -> Selection:
    """Keep problems that meet a condition in SQL, such as problem.level >= 3 and pass_rate < 0.5.

    It may name columns of problems and of their difficulty, keys of `extra` as problem.KEY, columns of trackers and
    measures as NAME.COLUMN, and in a query within it the table `candidates`. No file and no network is read. Raise
    UsageError for one that does not run, is no condition, or may come out differently another time.

    Args:
        condition: Condition of DuckDB's SQL; true for a problem that is kept.
        unknown: keep or drop problems for which it is null, such as those that were never measured.
    """
    try:
        met, said = _met(_table(candidates, condition), condition), shortened(condition)
    except UsageError as error:
        raise UsageError(
            f"the filter where does not take {shortened(condition)!r}: {error.message}",
            hint="it is one condition over columns of problems, such as problem.level >= 3 and pass_rate < 0.5",
        ) from None
    return selection(
        candidates.num_rows,
        [
            (nulls(met) & (unknown == "drop"), f"where: unknown if {said}"),
            (~bools(met, null=True), f"where: not {said}"),
        ],
    )


def _met(table: pa.Table, condition: str) -> Column:
    """Return whether each row meets the condition, (N,) bool, null if that is unknown; UsageError if none can."""
    _refuse_unsteady(condition)
    # Whatever the condition holds: the database is locked, and what comes back is checked.
    query = f"select {_ROW}, ({condition}\n) as {_MET} from candidates order by {_ROW}"  # noqa: S608 - as above
    with select({"candidates": Relation.of(table)}, {}, query) as answer:
        found = answer.table()
    if found.column_names != [_ROW, _MET] or found.num_rows != table.num_rows:
        raise UsageError("it is more than one condition")
    met = found.column(_MET)
    if not pa.types.is_boolean(met.type) and not pa.types.is_null(met.type):
        raise UsageError(f"it is {met.type}, neither true nor false")
    return met.cast(pa.bool_())


def _refuse_unsteady(condition: str) -> None:
    """Raise UsageError for a function whose value is another one in another run."""
    bare = re.sub(r"'(?:[^']|'')*'", "''", condition.lower())
    with select({}, {}, _UNSTEADY) as answer:
        functions = {*answer.table().column(0).to_pylist()}
    named = functions & {*re.findall(r"(\w+)\s*\(", bare)} | _OF_NOW & {*re.findall(r"\w+", bare)}
    if named:
        raise UsageError(f"{min(named)} may come out differently another time")


def _table(candidates: Rows, condition: str) -> pa.Table:
    """Return the columns that a condition may name, those of one NAME.COLUMN as a struct each, and row numbers."""
    plain = [name for name in candidates.columns if name not in _UNREAD and "." not in name]
    found: dict[str, Any] = {_ROW: pa.array(range(candidates.num_rows), pa.int64())}
    found |= {name: candidates.arrow(name) for name in plain}
    structs: dict[str, dict[str, pa.Array]] = {}
    for name in dotted(condition):
        if name in candidates or not candidates.num_rows:
            before, _, behind = name.partition(".")
            structs.setdefault(before, {})[behind] = _values(candidates, name)
    return pa.table(found | {name: pa.StructArray.from_arrays([*of.values()], [*of]) for name, of in structs.items()})


def _values(candidates: Rows, name: str) -> pa.Array:
    if not candidates.num_rows:  # settings are checked without problems: nothing is known of their keys
        return pa.nulls(0)
    try:
        return pa.array(candidates[name], from_pandas=True)
    except pa.ArrowException:
        raise BadInputError(f"the filter where goes by {name}, whose values are of several kinds") from None
