"""Rows of a user's own table of rollouts: the problem that each names, and the first that cannot be used."""

from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa

from gradus.data.errors import BadInputError, shortened
from gradus.data.exchange.row import Exchanged
from gradus.data.records import Problem, Row
from gradus.data.sources.formats import UnusableRowError, content_id
from gradus.data.sources.problems import folded
from gradus.data.sources.reading import Refused

OWN_HINT = "a row has problem_id or question, and reward or correct; --map ours=theirs renames columns"


@dataclass
class OwnRows:
    """The rows of one table so far, and the problems that they may name: any if there are none."""

    problems: pa.Table | None = None
    """problem_id and question of each (P,)."""
    _known: dict[str, None] = field(default_factory=dict[str, None])
    _by_question: dict[str, str] = field(default_factory=dict[str, str])
    _places: dict[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])

    def __post_init__(self) -> None:
        """Index the problems; of several with one question the first counts."""
        if self.problems is not None:
            ids, questions = (self.problems.column(name).to_pylist() for name in ("problem_id", "question"))
            self._known = dict.fromkeys(ids)
            for name, question in zip(ids, questions, strict=True):
                self._by_question.setdefault(folded(question or ""), name)

    def named(self, row: Exchanged, place: str) -> Exchanged:
        """Return a row with the id of its problem, of a question without one that which `ingest` makes.

        Raise UnusableRowError for a problem that is not known, and a sample that was there before.
        """
        if not row.problem_id:
            row = replace(row, problem_id=self._of_question(row.prompt))
        elif self.problems is not None and row.problem_id not in self._known:
            raise UnusableRowError(f"{shortened(row.problem_id)} is none of the {len(self._known)} problems")
        if row.sample is not None:
            key = (row.problem_id, row.round, row.sample)
            if (before := self._places.get(key)) is not None:
                raise UnusableRowError(f"sample {row.sample} of {shortened(row.problem_id)} was there before: {before}")
            self._places[key] = place
        return row

    def _of_question(self, question: str) -> str:
        if self.problems is None:
            return content_id(cast("Problem", {"question": question, "messages": None}))
        if (found := self._by_question.get(folded(question))) is None:
            raise UnusableRowError(f"its question is that of none of the {len(self._known)} problems")
        return found

    def refuse(self, refused: Refused, row: Row | None = None) -> None:
        """Raise BadInputError for the first row that cannot be used, if there is one."""
        if refused.examples:
            columns = f"; its columns are {shortened(', '.join(map(str, row)))}" if row else ""
            raise BadInputError(refused.examples[0], hint=OWN_HINT + columns)
