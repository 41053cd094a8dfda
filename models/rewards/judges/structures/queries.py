"""The reward `sql_result`: the rows of a query are those of the gold, in a database in memory."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.structured import answer_text, known, last_fenced

_READS = re.compile(r"\s*(?:select|with|from|values)\b", re.IGNORECASE)
_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)
_MAX_ROWS, _MAX_CHARS, _BATCH_ROWS = 10_000, 10_000_000, 16
_MEMORY = "256MB"
_CLOSED = (
    *("enable_external_access = false", "autoload_known_extensions = false", "python_enable_replacements = false"),
    "lock_configuration = true",
)
"""No files, no network, no extensions, no variables of Python's; the last keeps a query from changing the others."""


@component(
    "reward",
    name="sql_result",
    paper="Reasoning-Table",
    columns=("tables", "extra"),
    libraries=("duckdb",),
    needs_gold=True,
)
def judge_sql_result(row: Row, gold: str, max_chars: int) -> Verdict:
    """1 if a query of the completion returns the rows of the gold query, 0 if not, or if it does not run.

    Execution match ("Reasoning-Table: Exploring Reinforcement Learning for Table Reasoning"). `tables` (a column, or in
    `extra`) is {table: {"columns": [...], "rows": [[...], ...]}}. The query is the last block between fences, or the
    text behind the thinking; it is one statement that reads, in DuckDB without files, network and extensions. Rows
    count in their order only if the gold says `order by`; names of columns do not. Numbers are the same to nine digits.

    Args:
        row: The completion.
        gold: The query.
        max_chars: Longer completions are judged by their last characters.
    """
    import duckdb  # noqa: PLC0415 - a judge of other rewards needs none

    tables = known(row, "", "tables")
    if not _are_tables(tables):
        return failed('the row has no tables: {"name": {"columns": [...], "rows": [[...], ...]}}')
    text = answer_text(row, max_chars)
    query = None if text is None else (last_fenced(text) or text).strip().rstrip(";")
    if not query or not _READS.match(query):
        return unparsed(query)
    try:
        with _database(tables) as connection:
            wanted = _rows(connection, gold.strip().rstrip(";"))
            try:
                found = _rows(connection, query)
            except (duckdb.Error, ValueError, MemoryError):
                return judged(correct=False, extracted=query)
    except (duckdb.Error, ValueError) as error:
        return failed(f"the gold query does not run: {str(error)[:200]}")
    same = found == wanted if _ORDERED.search(gold) else Counter(found) == Counter(wanted)
    return judged(correct=same, extracted=query)


def warm_up() -> None:
    """Open a database with a table, whose libraries take longer to import than a row to judge."""
    _database({"t": {"columns": ["a"], "rows": [[1]]}}).close()


def _database(tables: Mapping[str, Any]) -> Any:
    import duckdb  # noqa: PLC0415 - as above
    import pyarrow as pa  # noqa: PLC0415

    connection = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": _MEMORY, "temp_directory": ""})
    try:
        for name, table in tables.items():
            columns = list(zip(*table["rows"], strict=True)) or [()] * len(table["columns"])
            frame = pa.table(dict(zip(table["columns"], map(pa.array, columns), strict=True)))
            connection.register("given", frame)
            quoted = name.replace('"', '""')
            connection.execute(f'create table "{quoted}" as select * from given')  # noqa: S608 - quoted
            connection.unregister("given")
        for setting in _CLOSED:
            connection.execute(f"set {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _rows(connection: Any, query: str) -> list[tuple[object, ...]]:
    """Return the rows of one statement that reads; ValueError for another, or for too large a result."""
    import duckdb  # noqa: PLC0415 - as above

    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("it is not one query that reads")
    result, found, num_chars = connection.execute(query), list[tuple[object, ...]](), 0
    while batch := result.fetchmany(_BATCH_ROWS):
        found += [tuple(map(_value, row)) for row in batch]
        num_chars += sum(len(str(value)) for row in found[-len(batch) :] for value in row)
        if len(found) > _MAX_ROWS or num_chars > _MAX_CHARS:
            raise ValueError(f"it returns more than {_MAX_ROWS:,} rows or {_MAX_CHARS:,} characters")
    return found


def _value(value: Any) -> object:
    if isinstance(value, bool) or value is None:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return f"{number:.9g}" if math.isfinite(number) and not isinstance(value, str) else str(value)


def _are_tables(tables: Any) -> bool:
    return isinstance(tables, dict) and bool(tables) and all(map(_is_table, tables.values()))


def _is_table(table: Any) -> bool:
    if not isinstance(table, dict):
        return False
    columns, rows = table.get("columns"), table.get("rows")
    return (
        isinstance(columns, list)
        and bool(columns)
        and len(set(map(str, columns))) == len(columns)
        and all(isinstance(each, str) for each in columns)
        and isinstance(rows, Sequence)
        and all(isinstance(row, list) and len(row) == len(columns) for row in rows)
    )
