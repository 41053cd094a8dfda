"""Rows of a user's own table of rollouts: each names its problem, and the first that cannot be used is an error."""

from typing import cast

import pyarrow as pa

from gradus.data.errors import BadInputError, shortened
from gradus.data.exchange.row import Exchanged
from gradus.data.records import Problem, Row
from gradus.data.sources.formats import UnusableRowError, content_id
from gradus.data.sources.problems import folded
from gradus.data.sources.reading import Refused

OWN_HINT = "a row has problem_id or question, and reward or correct; --map ours=theirs renames columns"


class NoneRefused(Refused):
    """No row may be refused: the first is an error."""

    def add(self, reason: str, place: str) -> None:
        """Raise BadInputError for a row."""
        raise BadInputError(f"{place}: {reason}", hint=OWN_HINT)


def own_hint(row: Row) -> str:
    """Return the hint of an error about a row, with the columns that the row has."""
    return f"{OWN_HINT}; its columns are {shortened(', '.join(map(str, row)))}" if row else OWN_HINT


class ProblemNames:
    """The problems that the rows of a table may name, any if there are none, and the samples that it had so far."""

    def __init__(self, problems: pa.Table | None) -> None:
        """Index the problems by id and question; of several with one question the first counts."""
        names = ("problem_id", "question")
        ids, questions = ((), ()) if problems is None else (problems.column(name).to_pylist() for name in names)
        self._any = problems is None
        self._known = frozenset[str](ids)
        pairs = zip(reversed(ids), reversed(questions), strict=True)
        self._by_question: dict[str, str] = {folded(question or ""): name for name, question in pairs}
        self._places: dict[tuple[str, int, int], str] = {}

    def of(self, row: Exchanged, place: str) -> str:
        """Return the id of a row's problem, of a question without one that which `ingest` makes.

        Raise UnusableRowError for a problem that is not known, and a sample that was there before.
        """
        name = row.problem_id or self._of_question(row.prompt)
        if not self._any and name not in self._known:
            raise UnusableRowError(f"{shortened(name)} is none of the {len(self._known)} problems")
        if row.sample is not None:
            before = self._places.setdefault((name, row.round, row.sample), place)
            if before != place:
                raise UnusableRowError(f"sample {row.sample} of {shortened(name)} was there before: {before}")
        return name

    def _of_question(self, question: str) -> str:
        if self._any:
            return content_id(cast("Problem", {"question": question, "messages": None}))
        if (found := self._by_question.get(folded(question))) is None:
            raise UnusableRowError(f"its question is that of none of the {len(self._known)} problems")
        return found
