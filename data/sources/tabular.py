"""Tables of the files that people have: columns renamed, types made ours, rows without what a table needs refused."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeGuard, cast

import numpy as np
import pyarrow as pa

from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.lake.schema import DIFFICULTY, PROBLEMS, ROLLOUTS, TableSchema, cast_to_schema
from gradus.data.nearest import did_you_mean
from gradus.data.records import Row
from gradus.data.sources.columns import column_of, other_column, shown
from gradus.data.sources.reading import Located, Refused, read_rows

MAPPED = tuple(dict.fromkeys(column.name for table in (ROLLOUTS, PROBLEMS) for column in table.columns))
"""Columns that columns of a file of rollouts may be renamed to: those of rollouts, and of problems beside them."""
_TEXTS = frozenset(column.name for column in PROBLEMS.columns if column.type == pa.string())
"""Columns of problems that rollouts may carry along: they mean the same there."""

_HINTS = {
    "rollouts": "correct that row, or rename columns with --map ours=theirs",
    "problems": "name the artifact that `gradus ingest` makes of the file, whose problems have ids",
    "difficulty": "a row has problem_id, and n and k, or rewards, pass_rate or history",
}
"""The hint of an error about a row of such a table."""


def refuse_fields(columns: Mapping[str, str], fields: Collection[str], table: str) -> None:
    """Raise UsageError if columns are to be renamed to something that nobody reads; `fields` are read of a table."""
    for ours in columns:
        if ours not in fields:
            hint = did_you_mean(ours, fields, f"its fields are {', '.join(fields)}")
            raise UsageError(f"there is no field {shortened(ours)} of {table}", hint=hint)


@dataclass
class Renamed:
    """Rows with some columns under other names, ours = theirs; what columns there were is remembered.

    Theirs may lie in an object: `reward_model.ground_truth`.
    """

    columns: Mapping[str, str]
    source: str
    seen: dict[str, None] = field(default_factory=dict[str, None])
    found: set[str] = field(default_factory=set[str])

    def __call__(self, row: Row) -> Row:
        """Return a row with its columns renamed."""
        if not self.columns:
            return row
        self.seen.update(dict.fromkeys(row))
        found = {ours: _values_at(row, theirs) for ours, theirs in self.columns.items()}
        self.found.update(theirs for ours, theirs in self.columns.items() if found[ours])
        return {**row, **{ours: next(iter(values), None) for ours, values in found.items()}}

    def refuse_unknown(self) -> None:
        """Raise BadInputError if no row had a column that was to be renamed."""
        for ours, theirs in self.columns.items() if self.seen else ():
            if theirs not in self.found:
                hint = did_you_mean(theirs, self.seen, f"its columns are {', '.join(self.seen)}")
                message = f"{self.source} has no column {shortened(theirs)} that could be {shortened(ours)}"
                raise BadInputError(message, hint=hint)


def _values_at(row: Row, name: str) -> list[object]:
    """Return the value of a column, or of a key in its object by a dotted name; empty if there is none."""
    if name in row:
        return [row[name]]
    column, _, rest = name.partition(".")
    held = row.get(column)
    return _values_at(cast("Row", held), rest) if isinstance(held, dict) else []


def read_user_table(path: Path, schema: TableSchema, columns: Mapping[str, str]) -> pa.Table:
    """Return a user's file as a table of the schema; `columns` renames, ours = theirs.

    Raise BadInputError with the place of the first row that cannot be used, or that has no value of a required column.
    """
    refused = Refused()
    rows: list[Located] = []
    renamed = Renamed(columns, str(path))
    needed = [name for name in schema.required if name not in ("rollout_id", "reward", "pass_rate")]
    found = (Located(each.place, renamed(each.row)) for each in read_rows(path, refused))
    for located in measured(found, may_be_one=path.suffix == ".json") if schema is DIFFICULTY else found:
        if missing := [name for name in needed if located.row.get(name) is None]:
            refused.add(f"no {missing[0]}", located.place)
        if refused.reasons:
            break
        rows.append(located)
    renamed.refuse_unknown()
    if refused.reasons:
        raise BadInputError(refused.examples[0], hint=_HINTS.get(schema.name, "correct that row"))
    if not rows:
        raise BadInputError(f"{path} has no usable row", hint=f"{schema.name} need {', '.join(schema.required)}")
    return _table(rows, schema)


def _table(rows: Sequence[Located], schema: TableSchema) -> pa.Table:
    known = {column.name: column for column in schema.columns}
    names = list(dict.fromkeys(name for located in rows for name in located.row))
    places = [located.place for located in rows]
    arrays: dict[str, pa.Array] = {}
    for name in names:
        values = [located.row.get(name) for located in rows]
        if name in known:
            arrays[name] = column_of(known[name], values, places)
        else:
            arrays[name] = other_column(name, values, places, is_text=name in _TEXTS)
    for name in schema.required:
        arrays.setdefault(name, pa.nulls(len(rows), known[name].type))
    return cast_to_schema(pa.table(arrays), schema)


def measured(rows: Iterator[Located], *, may_be_one: bool) -> Iterator[Located]:
    """Yield measurements of problems as rows of the table `difficulty`: with n and k, and what else follows.

        {"problem_id": "a", "n": 8, "k": 3}                  counts
        {"problem_id": "a", "rewards": [0, 1, 1, 0]}         a 0/1 reward for each rollout: n = 4, k = 2
        {"problem_id": "a", "rewards": [0.2, 0.9]}           graded rewards: their number, mean and variance, no verdict
        {"problem_id": "a", "pass_rate": 0.25}               of an unknown number of rollouts: n = 0
        {"problem_id": "a", "history": [0.1, 0.4]}           accuracies, oldest first; the last is the pass rate

    A .json file may hold all problems as one object, ID: number | list | row. Its lists are accuracy histories if all
    their numbers lie in [0, 1] and one is neither 0 nor 1, and rewards otherwise; its numbers are pass rates.
    One row without a problem_id is an object of all problems if it `may_be_one`. Raises BadInputError for what is no
    measurement.
    """
    first, second = next(rows, None), next(rows, None)
    rows = chain(filter(None, (first, second)), rows)
    if may_be_one and first is not None and second is None and "problem_id" not in first.row:
        rows = _by_problem(first)
    yield from map(_counted, rows)


def _by_problem(whole: Located) -> Iterator[Located]:
    lists = [value for value in whole.row.values() if isinstance(value, list)]
    numbers = [each for value in lists for each in cast("list[object]", value) if _is_number(each)]
    name = "history" if any(0 < each < 1 for each in numbers) and all(0 <= each <= 1 for each in numbers) else "rewards"
    for problem_id, value in whole.row.items():
        place = f"{whole.place}, {problem_id}"
        if isinstance(value, dict):
            yield Located(place, {**cast("Row", value), "problem_id": problem_id})
        elif isinstance(value, list):
            yield Located(place, {"problem_id": problem_id, name: value})
        elif _is_number(value):
            yield Located(place, {"problem_id": problem_id, "pass_rate": value})
        else:
            message = f"{place}: {shown(value)} is no measurement"
            raise BadInputError(message, hint="write a pass rate, a list of rewards, or a row")


def _counted(located: Located) -> Located:
    row = located.row
    if row.get("n") is not None or row.get("k") is not None:
        return located
    if row.get("rewards") is not None:
        return Located(located.place, {**{k: v for k, v in row.items() if k != "rewards"}, **_rewarded(located)})
    history = row.get("history")
    rate = row.get("pass_rate")
    if rate is None and isinstance(history, list) and history:
        rate = cast("list[object]", history)[-1]
    return located if rate is None else Located(located.place, {**row, "n": 0, "k": 0, "pass_rate": rate})


def _rewarded(located: Located) -> Mapping[str, object]:
    given = located.row["rewards"]
    if not isinstance(given, list) or not all(map(_is_number, given := cast("list[object]", given))):
        message = f"{located.place}: rewards is {shown(given)}"
        raise BadInputError(message, hint="write a list of finite numbers, one a rollout")
    rewards = np.array(given, np.float64)
    judged = bool(np.isin(rewards, (0, 1)).all())
    of_all = {"reward_mean": float(rewards.mean()), "reward_variance": float(rewards.var())} if len(rewards) else {}
    n, right = (len(rewards), int(rewards.sum())) if judged else (0, 0)
    return {"n": n, "k": right, "reward_n": len(rewards), **of_all}


def _is_number(value: object) -> TypeGuard[float]:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) < 2**53
