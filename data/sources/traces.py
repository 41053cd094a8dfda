"""Completions that somebody else wrote for problems: a file of rows `problem, source, text`, several a problem.

`problem` is the id of a problem or its question, without regard to case and spaces; `text` is taken as it stands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import BadInputError
from gradus.data.records import Problem, Row
from gradus.data.sources.problems import folded, question_key
from gradus.data.sources.reading import Refused, read_rows


@dataclass(frozen=True)
class Trace:
    """A completion of a problem, and who wrote it if the file says so."""

    problem_id: str
    text: str
    source: str | None


def read_traces(path: Path, problems: Sequence[Problem], refused: Refused) -> list[Trace]:
    """Return the rows of a file that belong to the problems; BadInputError if none does."""
    by_name = {question_key(problem): problem["problem_id"] for problem in problems}
    by_name |= {problem["problem_id"]: problem["problem_id"] for problem in problems}
    found: list[Trace] = []
    for located in read_rows(path, refused):
        trace = _trace(located.row, by_name)
        if isinstance(trace, Trace):
            found.append(trace)
        else:
            refused.add(trace, located.place)
    if not found:
        reasons = "; ".join(refused.examples) or "it has no rows"
        raise BadInputError(
            f"no row of {path} is a completion of a training problem: {reasons}",
            hint="give the columns problem (its id or its question) and text, and source if there are several",
        )
    return found


def _trace(row: Row, by_name: Mapping[str, str]) -> Trace | str:
    """A row as a trace, or why it is none."""
    named, text, source = (row.get(key) for key in ("problem", "text", "source"))
    if named is None or text is None:
        return "no problem" if named is None else "no text"
    if not isinstance(text, str) or not isinstance(source, str | None):
        return "text or source is not text"
    if not text.strip():
        return "empty text"
    problem = by_name.get(str(named)) or by_name.get(folded(str(named)))
    return Trace(problem, text, source) if problem else "its problem is not among the training problems"
