"""A column and a table of the lake: names, Arrow types, docs, bounds."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Column:
    """One column: name, Arrow type, doc line (with unit), whether a user's file must have it.

    `low` and `high` bound its numbers, also those in lists; `above` is a bound that no number may reach.
    """

    name: str
    type: pa.DataType
    doc: str
    required: bool = False
    low: float | None = None
    high: float | None = None
    above: float | None = None
    sparse: bool = False
    """Only in tables in which a row has a value."""

    @property
    def bounds(self) -> str:
        """Its bounds in words; empty if it has none.

        >>> Column("top_p", pa.float64(), "", above=0, high=1).bounds
        'above 0, at most 1'
        """
        if self.low is not None and self.high is not None:
            return f"from {self.low:,.15g} to {self.high:,.15g}"
        named = (("above {:,.15g}", self.above), ("from {:,.15g} on", self.low), ("at most {:,.15g}", self.high))
        return ", ".join(text.format(value) for text, value in named if value is not None)

    @property
    def wanted(self) -> str:
        """Return the type that a value must have, in words."""
        return f"{kind_of(self.type)} {self.bounds}".strip()


@dataclass(frozen=True)
class TableSchema:
    """One table: its columns and the columns that together identify a row."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    own_key: str = ""
    """Sparse column that identifies a row instead of `key` if it is not null."""

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of every such table, with the doc lines as field metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"doc": c.doc}) for c in self.columns if not c.sparse],
            metadata={"gradus.table": self.name, "gradus.schema_version": str(SCHEMA_VERSION)},
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(c.name for c in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that a supplied file must have."""
        return tuple(c.name for c in self.columns if c.required)

    def column(self, table: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
        """Return a column of such a table; nulls if it is a sparse one that no row has."""
        if name in table.column_names:
            return table.column(name)
        return pa.nulls(table.num_rows, self.type_of(name))

    def filled(self, table: pa.Table, names: Collection[str]) -> pa.Table:
        """Return such a table with nulls in those of some of its columns that it lacks."""
        for name in self.names:
            if name in names and name not in table.column_names:
                table = table.append_column(name, self.column(table, name))
        return table

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return next(column.type for column in self.columns if column.name == name)

    def restricted(self, names: Collection[str]) -> "TableSchema":
        """The same table with some of its columns alone."""
        return replace(self, columns=tuple(c for c in self.columns if c.name in names))


def kind_of(wanted: pa.DataType) -> str:
    """Return what a type of a column holds, in words.

    >>> kind_of(pa.list_(pa.int32())), kind_of(pa.string())
    ('a list of whole numbers', 'text')
    """
    if pa.types.is_list(wanted):
        inner = wanted.value_type
        objects = f"objects with {', '.join(each.name for each in inner)}" if pa.types.is_struct(inner) else ""
        return f"a list of {objects or kind_of(inner).removeprefix('a ') + 's'}"
    kinds: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
        ("a whole number", pa.types.is_integer),
        ("a number", pa.types.is_floating),
        ("true or false", pa.types.is_boolean),
        ("an object of numbers", pa.types.is_map),
    )
    return next((name for name, is_kind in kinds if is_kind(wanted)), "text")
