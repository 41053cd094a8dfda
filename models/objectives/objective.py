"""An objective: a sum of terms, each a loss of some rows with its advantage, weights, aggregation and coefficient."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gradus.models.objectives.rows import Rows

MEMBERS = "terms"
"""Column of rows, (N, terms) bool: the terms that each row belongs to; without it every row belongs to all."""
WEIGHT = "weight"
"""Column of rows, (N,) float64: a factor of the loss of each token of the row, NaN for 1; without it all are 1."""


@dataclass(frozen=True)
class Part:
    """A component with its settings bound; it sees the columns that it reads, None all of them."""

    function: Callable[[Rows], Any]
    name: str = ""
    reads: frozenset[str] | None = None

    def __call__(self, rows: Rows) -> Any:
        """Compute it."""
        return self.function(rows.reading(self.reads, self.name))


@dataclass(frozen=True)
class Advantage:
    """An advantage, and whether it is made once an update or anew for every step."""

    part: Part
    when: Literal["update", "step"] = "update"
    per: Literal["row", "token"] = "row"
    compares_group: bool = True
    """True if groups of equal rewards have none."""

    def is_by_token(self, values: Tensor, num_rows: int) -> bool:
        """Return whether it came out as one number a token; of as many rows as tokens, what it says decides."""
        return len(values) != num_rows or self.per == "token"


@dataclass(frozen=True)
class Term:
    """One term of an objective."""

    loss: Part
    aggregation: Part
    advantage: int = 0
    """Index of the objective's advantage that it takes."""
    weights: tuple[Part, ...] = ()
    coefficient: float = 1.0
    name: str = ""
    """Prefix of the names of its metrics."""
    acts_without_advantage: bool = False
    needs_sampler: bool = True
    per: Literal["row", "token"] = "token"
    """Meaning of as many losses as there are rows and tokens; otherwise their number decides."""
    regulariser: bool = False
    """True if no weight multiplies it, that of the correction included."""
    over: Literal["step", "term"] = "step"
    """Tokens and rows that aggregation and weights count: those of the whole step, or of the term alone."""

    def losses(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each token, (M,), and metrics of the same shape; a row's loss is that of its tokens."""
        loss, metrics = self.loss(rows)
        if len(loss) != rows.num_rows or (self.per == "token" and len(loss) == len(rows.row)):
            return loss, metrics
        return loss[rows.row], {name: values[rows.row] for name, values in metrics.items()}


@dataclass(frozen=True)
class Objective:
    """A sum of terms."""

    advantages: tuple[Advantage, ...]
    terms: tuple[Term, ...]
    correction: Part | None = None
    """None weighs every token alike."""

    def members(self, rows: Rows) -> Tensor:
        """Return the terms that each row belongs to, (N, terms) bool."""
        if MEMBERS in rows:
            return rows[MEMBERS]
        return torch.ones(rows.num_rows, len(self.terms), dtype=torch.bool)

    def with_advantages(self, rows: Rows) -> Rows:
        """Return the rows of an update with the advantages that are made once, 0 where every step makes its own."""
        of_rows, of_tokens = dict[str, Tensor](), dict[str, Tensor]()
        for index, each in enumerate(self.advantages):
            once = each.when == "update"
            values = each.part(rows) if once else torch.zeros(rows.num_rows, dtype=torch.float64)
            by_token = once and each.is_by_token(values, rows.num_rows)
            (of_tokens if by_token else of_rows)[advantage_column(index)] = values
        return rows.adding(of_rows, of_tokens)

    def acting(self, rows: Rows) -> Tensor:
        """Return which rows have a gradient without an advantage, (N,) bool."""
        return self._of_terms(rows, [term.acts_without_advantage for term in self.terms])

    def needs_sampler(self, rows: Rows) -> Tensor:
        """Return which rows need the log-probs of a sampler, (N,) bool."""
        return self._of_terms(rows, [term.needs_sampler for term in self.terms])

    def may_learn(self, rows: Rows, varied: Tensor | None = None) -> Tensor:
        """Return which rows may have a gradient, (N,) bool: those whose advantage is not 0, or that need none.

        `varied` (N,) are the rows of groups of unequal rewards: of the advantages that every step makes, those that
        compare a group may reach them alone. None: all.
        """
        everywhere = torch.ones(rows.num_rows, dtype=torch.bool)
        compared = everywhere if varied is None else varied
        found, members = self.acting(rows), self.members(rows)
        for index, term in enumerate(self.terms):
            given = rows[advantage_column(term.advantage)]
            advantage = self.advantages[term.advantage]
            if advantage.when == "step":
                own = compared if advantage.compares_group else everywhere
            elif advantage.is_by_token(given, rows.num_rows):
                own = rows.row_sum((given != 0).double()) > 0
            else:
                own = given != 0
            found = found | (members[:, index] & own)
        return found

    def _of_terms(self, rows: Rows, wanted: list[bool]) -> Tensor:
        return (self.members(rows) & torch.tensor(wanted)).any(1)

    def of_step(self) -> frozenset[str]:
        """Return the columns that are read of all rows of a step, before its gradient."""
        parts = [each.part for each in self.advantages if each.when == "step"]
        return _read([*parts, *(part for term in self.terms for part in (*term.weights, term.aggregation))])

    def of_pack(self) -> frozenset[str]:
        """Return the columns that losses read."""
        return _read([term.loss for term in self.terms])


def advantage_column(index: int) -> str:
    """Return the name of the column of one of an objective's advantages in the rows of an update."""
    return f"advantage.{index}" if index else "advantage"


def _read(parts: list[Part]) -> frozenset[str]:
    return frozenset(name for part in parts for name in part.reads or ())
