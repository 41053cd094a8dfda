"""Tables of the files that people have: columns renamed, types made ours, rows without what a table needs refused."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow as pa

from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.lake.schema import DIFFICULTY, PROBLEMS, ROLLOUTS, TableSchema, cast_to_schema
from gradus.data.nearest import did_you_mean
from gradus.data.records import Row
from gradus.data.sources.columns import column_of, other_column
from gradus.data.sources.measured import measured
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
            known = list(fields)
            hint = did_you_mean(ours, known, f"its fields are {', '.join(known)}")
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
                known = list(self.seen)
                hint = did_you_mean(theirs, known, f"its columns are {', '.join(known)}")
                raise BadInputError(
                    f"{self.source} has no column {shortened(theirs)} that could be {shortened(ours)}", hint=hint
                )


def _values_at(row: Row, name: str) -> list[object]:
    """Return the value of a column, or of a key in its object by a dotted name; empty if there is none."""
    if name in row:
        return [row[name]]
    column, _, rest = name.partition(".")
    held = row.get(column)
    return _values_at(cast("Row", held), rest) if isinstance(held, dict) else []


def read_user_table(
    path: Path, schema: TableSchema, columns: Mapping[str, str], *, strict: bool
) -> tuple[pa.Table, Refused]:
    """Return a user's file as a table of the schema; `columns` renames, ours = theirs. Raises BadInputError.

    Rows without a required value are refused; with `strict` the first refusal is raised with its place.
    """
    refused = Refused()
    rows: list[Located] = []
    renamed = Renamed(columns, str(path))
    needed = [name for name in schema.required if name not in ("rollout_id", "reward", "pass_rate")]
    found = (Located(each.place, renamed(each.row)) for each in read_rows(path, refused))
    for located in measured(found, may_be_one=path.suffix == ".json") if schema is DIFFICULTY else found:
        missing = [name for name in needed if located.row.get(name) is None]
        if missing:
            refused.add(f"no {missing[0]}", located.place)
        else:
            rows.append(located)
        if strict and refused.reasons:
            break
    renamed.refuse_unknown()
    if strict and refused.reasons:
        raise BadInputError(refused.examples[0], hint=_HINTS.get(schema.name, "correct that row"))
    if not rows:
        raise BadInputError(f"{path} has no usable row", hint=f"{schema.name} need {', '.join(schema.required)}")
    return _table(rows, schema), refused


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
