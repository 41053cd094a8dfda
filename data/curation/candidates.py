"""Candidates: the problems that a round can train on, with their measurements, for filters, rankings and samplers.

    candidates["pass_rate"]          (N,) float64, NaN where never measured
    candidates["problem.level"]      (N,): the key `level` of each problem's `extra`

Columns are those of the tables problems and difficulty, `prompt_tokens` and `contaminated` (gradus.data.table_rows).
"""

from collections.abc import Collection
from typing import Any, ClassVar

import pyarrow as pa

from gradus.data.arrays import positions, take_or_null
from gradus.data.curation.difficulty import complete
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import DIFFICULTY, OF_PROBLEM, PROBLEMS
from gradus.data.table_rows import TableRows

PROMPT_TOKENS = "prompt_tokens"
"""The column that holds the number of tokens of each prompt, if a policy was given to count them."""
CONTAMINATED = "contaminated"
"""The column that is 1 for a problem that shares text with an evaluated one (gradus.data.curation.overlap), else 0;
there if evaluated problems were given."""

MADE = (PROMPT_TOKENS, CONTAMINATED)
"""The columns of neither table, each there only for a component that needs it."""
_MEASURED = tuple(column.name for column in DIFFICULTY.columns if column.name != "problem_id")


class Candidates(TableRows):
    """Problems with their measurements."""

    known: ClassVar[Collection[str]] = (*(column.name for column in PROBLEMS.columns), *_MEASURED, *MADE)

    def _source(self, name: str) -> str:
        plain = name.removeprefix(OF_PROBLEM)  # problem.domain is the column, as in the rows of a round
        return plain if name != plain and plain in PROBLEMS.names else super()._source(name)

    def _column(self, name: str) -> Any:
        source = self._source(name)
        return super()._column(name if source in ("", self.extra) else source)


def candidates(problems: pa.Table, difficulty: pa.Table | None) -> Candidates:
    """Return problems with their measurements beside them, in the order of the problems.

    A problem without a difficulty row is unmeasured: n and k are 0 and its pass_rate NaN.
    Raise BadInputError if no difficulty row matches a problem.
    """
    measured = complete(difficulty if difficulty is not None else DIFFICULTY.arrow.empty_table())
    at = positions(problems.column("problem_id"), measured.column("problem_id"))
    if measured.num_rows and problems.num_rows and not (at >= 0).any():
        theirs, ours = measured.column("problem_id")[0].as_py(), problems.column("problem_id")[0].as_py()
        raise BadInputError(
            f"none of the {measured.num_rows} difficulty rows names a problem of the problems table",
            hint=f"the difficulty says {theirs!r} where the problems say {ours!r}",
        )
    table = problems
    for name in _MEASURED:
        column = take_or_null(measured.column(name), at)
        table = table.append_column(name, column.fill_null(0) if name in ("n", "k") else column)
    return Candidates(table)


def no_candidates() -> Candidates:
    """Return candidates without rows: enough for a filter to refuse settings that contradict each other."""
    columns = {column.name: column.type for column in (*PROBLEMS.columns, *DIFFICULTY.columns)}
    return Candidates(pa.schema([*columns.items(), *((name, pa.int64()) for name in MADE)]).empty_table())
