"""A reward that checks every line of a running checksum, so that an answer which is right by luck earns nothing."""

from collections.abc import Mapping, Sequence

import numpy as np
from task import ANSWER, solution_of

Row = Mapping[str, str | None]


def lines(rows: Sequence[Row]) -> list[float]:
    """Return 1 for each completion that, behind the hint which its prompt ended with, is the right solution, else 0."""
    return [float(_written(row) == _wanted(row)) for row in rows]


def _written(row: Row) -> list[str]:
    text = f"{row.get('hint_text') or ''}\n{row['completion']}"
    return [line for line in text.split("\n") if line]


def _wanted(row: Row) -> list[str]:
    digits = [int(digit) for digit in str(row["question"]).rstrip("=")]
    right = solution_of(digits, np.random.default_rng(0))
    return ANSWER.format(solution="\n".join(right), answer=right[-1][1:]).split("\n")
