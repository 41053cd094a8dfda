"""Rows of a query: a table, or records or CSV where it does not fit; as JSON one object, written as it is read."""

import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, islice

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from gradus.data.lake.queries import Answer
from gradus.flows.console.output import View, aside, line, pipe_may_close, safe
from gradus.tasks.formats import csv_cell, more, terminal_safe

TERMINAL_ROWS = 100
"""Rows shown on a terminal without `--limit`."""
PAGE_ROWS = 200
MAX_CHARS = 2000
FOLD = 24
"""Characters that a column keeps at least, or all that it has, before rows become records."""

Row = tuple[object, ...]


def print_json(found: Answer, limit: int) -> None:
    """One object, `{"columns": [...], "rows": [[...], ...]}`, never held as a whole; `limit` 0 is all rows."""
    with pipe_may_close(found.interrupt):
        out, separator = sys.stdout, ""
        rows = rows_of(found, limit)
        first = list(islice(rows, 1))  # a query that fails, fails before anything is written
        out.write(f'{{"columns": {json.dumps(found.columns)}, "rows": [')
        for row in chain(first, rows):
            out.write(separator + json.dumps(list(map(_jsonable, row)), allow_nan=False, default=str))
            separator = ", "
        out.write("]}\n")


def print_rows(found: Answer, limit: int | None) -> None:
    """Print a table if the columns fit the width, else records; on a terminal TERMINAL_ROWS unless limited.

    Elsewhere than on a terminal what does not fit the width, or a page, is CSV. A page is written once it is read.
    """
    columns, console = found.columns, View()
    with pipe_may_close(found.interrupt):
        shown = (TERMINAL_ROWS if console.is_terminal else 0) if limit is None else limit
        rows, printed = rows_of(found, shown + 1 if shown else 0), 0
        cells = (tuple(map(text_of, row)) for row in islice(rows, shown or None))
        first = list(islice(cells, PAGE_ROWS + 1))
        widths = _widths(columns, first, console.width) if first else None
        if not console.is_terminal and first and (widths is None or len(first) > PAGE_ROWS):
            writer = csv.writer(sys.stdout, lineterminator="\n")
            rows_of_csv = chain([[terminal_safe(name) for name in columns]], first, cells)
            writer.writerows(map(csv_cell, row) for row in rows_of_csv)
            say = aside
        else:
            pages = chain([first], iter(lambda: list(islice(cells, PAGE_ROWS)), []))
            for page in filter(None, pages):
                console.print(_table(columns, page, widths) if widths else _records(columns, page, printed))
                printed += len(page)
            say = line
        if not first:
            line(f"no rows (of the columns {', '.join(columns)})")
        elif shown and next(rows, None) is not None:
            say(f"the first {shown} rows; --limit N shows N, --limit 0 all, --json writes all as JSON")


def rows_of(found: Answer, limit: int = 0) -> Iterator[Row]:
    """Return the rows of an answer, read as they are asked for; `limit` 0 is all rows."""
    # By column: names may occur twice in a result.
    columns = ([column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns] for batch in found.batches)
    return islice((row for batch in columns for row in zip(*batch, strict=True)), limit or None)


def _widths(columns: Sequence[str], texts: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the least width of every column; None if they do not fit beside each other."""
    found: list[int] = []
    for name, cells in zip(columns, zip(*texts, strict=True), strict=True):
        longest = max(cell_len(part) for cell in cells for part in cell.split("\n"))
        found.append(max(cell_len(name), min(longest, FOLD)))
    return found if sum(found) + 3 * len(found) + 1 <= width else None


def _table(columns: Sequence[str], texts: Sequence[Sequence[str]], widths: Sequence[int]) -> Table:
    view = Table(header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        view.add_column(safe(name), overflow="fold", min_width=width)
    for row in texts:
        view.add_row(*map(Text, row))
    return view


def _records(columns: Sequence[str], texts: Sequence[Sequence[str]], before: int) -> Table:
    view = Table.grid(padding=(0, 2, 0, 0))
    view.add_column(style="bold", overflow="fold", max_width=30)
    view.add_column(overflow="fold")
    for number, row in enumerate(texts, start=before + 1):
        view.add_row(Text(f"row {number:,}", style="reverse"), Text())
        for name, cell in zip(columns, row, strict=True):
            view.add_row(safe(name), Text(cell))
    return view


def text_of(value: object) -> str:
    """A value as people read it, safe for a terminal and not too long."""
    text = value if isinstance(value, str) else json.dumps(_jsonable(value), default=str, ensure_ascii=False)
    plain = terminal_safe(text if isinstance(value, str) else text.strip('"'))
    return plain[:MAX_CHARS] + more(plain, MAX_CHARS)


def _jsonable(value: object) -> object:
    """Whole numbers of any size as numbers, what JSON has no number for as a text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return [_jsonable(item) for item in value] if isinstance(value, list | tuple) else value
