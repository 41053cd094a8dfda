"""Pages of rows for pipes and files, as rich draws them on a terminal, in a hundredth of the time.

Both functions return an empty text for what only rich can lay out: cells of several lines, names that must be folded.
"""

import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells

MAX_NAME = 30


def draw_table(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """One line for each row between the lines of a table, if all cells fit beside each other.

    >>> print(draw_table(["a", "bcd"], [["xx", "1"]], 20), end="")
    ┏━━━━┳━━━━━┓
    ┃ a  ┃ bcd ┃
    ┡━━━━╇━━━━━┩
    │ xx │ 1   │
    └────┴─────┘
    """
    columns = [(name, *cells) for name, *cells in zip(names, *rows, strict=True)]
    widths = [max(map(cell_len, cells)) for cells in columns]
    if sum(widths) + 3 * len(widths) + 1 > width or any("\n" in cell for cells in columns for cell in cells):
        return ""

    def rule(begin: str, line: str, between: str, end: str) -> str:
        return begin + between.join(line * (size + 2) for size in widths) + end

    def cells(row: Sequence[str], bar: str) -> str:
        padded = (cell + " " * (size - cell_len(cell)) for cell, size in zip(row, widths, strict=True))
        return f"{bar} {f' {bar} '.join(padded)} {bar}"

    head = [rule("┏", "━", "┳", "┓"), cells(names, "┃"), rule("┡", "━", "╇", "┩")]
    return "\n".join([*head, *(cells(row, "│") for row in rows), rule("└", "─", "┴", "┘"), ""])


def draw_records(names: Sequence[str], rows: Sequence[Sequence[str]], before: int, width: int) -> str:
    """A line `row N` for each row, then its columns, each below the other, values folded at words."""
    label = max(cell_len(f"row {before + len(rows):,}"), *map(cell_len, names))
    if label > MAX_NAME or any("\n" in name for name in names):
        return ""
    labels = [name + " " * (label + 2 - cell_len(name)) for name in names]
    lines: list[str] = []
    for number, row in enumerate(rows, start=before + 1):
        lines.append(f"row {number:,}")
        for name, cell in zip(labels, row, strict=True):
            first, *others = _folded(cell, width - label - 2)
            lines.append((name + first).rstrip())
            lines.extend((" " * (label + 2) + other).rstrip() for other in others)
    return "\n".join([*lines, ""])


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a text, long ones wrapped between words, too long words anywhere."""
    return [part for line in text.split("\n") for part in _parts(line, max(1, width))]


def _parts(line: str, width: int) -> Iterator[str]:
    if cell_len(line) <= width:
        yield line
    elif line.isascii():
        yield from textwrap.wrap(line, width, expand_tabs=False, replace_whitespace=False, break_on_hyphens=False) or [
            ""
        ]
    else:
        yield from chop_cells(line, width)
