"""What `gradus browse` lists: rounds, problems and groups of a run, filtered, in pages.

    listing = Listing(rows, "groups", Scope(round=3, purpose="train"), condition="reward < 0.5")
    listing.page(offset=0)

A filter chooses rollouts; a round, problem or group is listed with those of its rollouts that are chosen.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradus.data.errors import UsageError
from gradus.tasks.formats import number, share
from gradus.tasks.inspect.groups import GroupKey
from gradus.tasks.inspect.run_rows import Row, RunRows

PAGE_ROWS = 200
"""Lines that are read together."""
EVERYTHING = "true"
"""The condition of no filter."""


@dataclass(frozen=True)
class Scope:
    """What a list is restricted to: a round with its purpose, or a problem; None is all."""

    round: int | None = None
    purpose: str | None = None
    problem_id: str | None = None


@dataclass(frozen=True)
class Line:
    """A line of a list, and what it opens."""

    cells: tuple[str, ...]
    scope: Scope
    group: GroupKey | None = None


@dataclass(frozen=True)
class _View:
    columns: tuple[str, ...]
    numbers: frozenset[str]
    select: str
    orders: Mapping[str, str]
    line: Callable[[Row], Line]


def _round_line(row: Row) -> Line:
    at, purpose, groups, rollouts, right, reward, hinted, tokens = row
    cells = (str(at), purpose, f"{groups:,}", f"{rollouts:,}", share(right, 0), number(reward), f"{hinted:,}")
    return Line((*cells, number(tokens)), Scope(round=at, purpose=purpose))


def _problem_line(row: Row) -> Line:
    problem, rounds, rollouts, right, reward, change, tokens = row
    moved = "-" if change is None else f"{100 * change:+.0f}"
    cells = (problem, f"{rounds:,}", f"{rollouts:,}", share(right, 0), number(reward), moved, number(tokens))
    return Line(cells, Scope(problem_id=problem))


def _group_line(row: Row) -> Line:
    at, purpose, problem, group_id, artifact, rollouts, right, reward, spread, hint, tokens = row
    cells = (str(at), purpose, problem, f"{rollouts:,}", share(right, 0), number(reward), number(spread), str(hint))
    key = GroupKey(at, purpose, problem, group_id, artifact)
    return Line((*cells, number(tokens)), Scope(problem_id=problem), key)


VIEWS: Mapping[str, _View] = {
    "rounds": _View(
        ("round", "purpose", "groups", "rollouts", "right", "reward", "hinted", "tokens"),
        frozenset({"round", "groups", "rollouts", "right", "reward", "hinted", "tokens"}),
        """
        select round, purpose, count(distinct (rollouts_artifact, problem_id, group_id)), count(*),
            avg(correct::int), avg(reward), count(*) filter (hint_level > 0), avg(tokens)
        from sampled where {where} group by round, purpose
        """,
        {"round": "round, purpose", "reward": "avg(reward), round, purpose"},
        _round_line,
    ),
    "problems": _View(
        ("problem", "rounds", "rollouts", "right", "reward", "change", "tokens"),
        frozenset({"rounds", "rollouts", "right", "reward", "change", "tokens"}),
        """
        select problem_id, count(distinct round), count(*), avg(correct::int), avg(reward), any_value(change),
            avg(tokens)
        from sampled where {where} group by problem_id
        """,
        {
            "change": "abs(any_value(change)) desc nulls last, problem_id",
            "hardest": "avg(correct::int), problem_id",
            "name": "problem_id",
        },
        _problem_line,
    ),
    "groups": _View(
        ("round", "purpose", "problem", "n", "right", "reward", "std", "hint", "tokens"),
        frozenset({"round", "n", "right", "reward", "std", "hint", "tokens"}),
        """
        select round, purpose, problem_id, group_id, rollouts_artifact, count(*), avg(correct::int), avg(reward),
            stddev_pop(reward), max(hint_level), avg(tokens)
        from sampled where {where} group by round, purpose, problem_id, group_id, rollouts_artifact
        """,
        {
            "round": "round, purpose, problem_id, group_id",
            "std": "stddev_pop(reward) desc nulls last, round, problem_id, group_id",
            "reward": "avg(reward), round, problem_id, group_id",
            "length": "avg(tokens) desc, round, problem_id, group_id",
        },
        _group_line,
    ),
}


@dataclass(frozen=True)
class Listing:
    """A view within a scope, filtered and ordered; `condition` is what `RunRows.matching` returned."""

    rows: RunRows
    view: str
    scope: Scope = Scope()
    condition: str = EVERYTHING
    order: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return VIEWS[self.view].columns

    @property
    def orders(self) -> list[str]:
        """Names of the orders that the view has, the usual one first."""
        return list(VIEWS[self.view].orders)

    @property
    def ordered_by(self) -> str:
        """Name of the order."""
        return self.order or self.orders[0]

    def is_number(self, column: str) -> bool:
        """Whether a column ends at the right."""
        return column in VIEWS[self.view].numbers

    def count(self) -> int:
        """Return how many lines there are."""
        select, values = self._select()
        return self.rows.one(f"select count(*) from ({select})", values)[0]  # noqa: S608 - the user's own filter

    def counted(self, num_lines: int) -> str:
        """Return how many lines there are in words; a round has a line for each purpose."""
        if self.view != "rounds":
            return f"{num_lines:,} {self.view}"
        select, values = self._select()
        (num_rounds,) = self.rows.one(f"select count(distinct round) from ({select}) where round > 0", values)  # noqa: S608 - as above
        return f"{num_rounds:,} round{'s' * (num_rounds != 1)} in {num_lines:,} lines" if num_lines else "0 rounds"

    def page(self, offset: int = 0) -> list[Line]:
        """Return up to PAGE_ROWS lines."""
        select, values = self._select()
        order = VIEWS[self.view].orders[self.ordered_by]
        found = self.rows.ask(f"{select} order by {order} limit {PAGE_ROWS} offset {offset}", values)
        return [VIEWS[self.view].line(row) for row in found]

    def _select(self) -> tuple[str, list[object]]:
        named = {"round": self.scope.round, "purpose": self.scope.purpose, "problem_id": self.scope.problem_id}
        chosen = {name: value for name, value in named.items() if value is not None}
        where = " and ".join([self.condition, *(f"{name} = ?" for name in chosen)])
        return VIEWS[self.view].select.format(where=where), list(chosen.values())


def groups_of(rows: RunRows, problem: str) -> list[GroupKey]:
    """Return the groups of a problem by round."""
    found = rows.ask(
        """
        select distinct round, purpose, problem_id, group_id, rollouts_artifact from sampled where problem_id = ?
        order by round, purpose, group_id
        """,
        [problem],
    )
    return [GroupKey(*row) for row in found]


_COMPARISON = re.compile(r"\s*(<=|>=|<>|!=|<|>|=)?\s*([+-]?\d+(?:\.\d+)?)\s*")


def comparison(column: str, text: str) -> str:
    """Return a field of the filter as SQL: a number, or one with a sign before it; an empty field is no condition.

    >>> comparison("reward", "< 0.5"), comparison("hint_level", "2"), comparison("tokens", " ")
    ('reward < 0.5', 'hint_level = 2', '')
    """
    if not text.strip():
        return ""
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise UsageError(f"{column} is {text.strip()[:40]!r}, no comparison", hint="write < 0.5, >= 100 or 2")
    return f"{column} {found[1] or '='} {found[2]}"


def joined(conditions: Sequence[str]) -> str:
    """Return conditions that all hold as one; empty if there is none."""
    return " and ".join(f"({condition}\n)" if condition.count(" ") > 2 else condition for condition in conditions)
