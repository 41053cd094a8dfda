"""The lists of `gradus browse`: rounds, problems and groups of a run, filtered, in pages.

    listing = Listing(rows, "groups", {"round": 3, "purpose": "train"}, condition="reward < 0.5")
    listing.page(offset=0)

A filter chooses rollouts; a round, problem or group is listed with those of its rollouts that are chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.tasks.formats import count, number, share
from gradus.tasks.inspect.groups import KEY, GroupKey
from gradus.tasks.inspect.run_rows import Row, RunRows

PAGE_ROWS = 200
"""Lines that are read together."""
EVERYTHING = "true"
"""The condition of no filter."""


Line = tuple[dict[str, Any], tuple[str, ...]]
"""The round with its purpose, problem or group that a line is of, by column; and its cells."""


@dataclass(frozen=True)
class _View:
    """Columns, what a line is of, and the orders by name."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    orders: Mapping[str, str]
    condition: str = EVERYTHING
    """Rows that its lines count."""


COLUMNS: Mapping[str, tuple[str, Callable[[Any], str] | None]] = {
    "purpose": ("purpose", None),
    "problem": ("problem_id", None),
    "round": ("round", str),
    "rounds": ("count(distinct round)", count),
    "groups": ("count(distinct (rollouts_artifact, problem_id, group_id))", count),
    "rollouts": ("count(*)", count),
    "n": ("count(*)", count),
    "right": ("avg(correct::int)", lambda value: share(value, 0)),
    "reward": ("avg(reward)", number),
    "std": ("stddev_pop(reward)", number),
    "change": ("any_value(change)", lambda value: "-" if value is None else f"{100 * value:+.0f}"),
    "hint": ("max(hint_level)", str),
    "hinted": ("count(*) filter (hint_level > 0)", count),
    "tokens": ("avg(tokens)", number),
}
"""Each column as SQL on the rows of `sampled` in a line, and the format of its numbers; None for text."""

VIEWS: Mapping[str, _View] = {
    "rounds": _View(
        ("round", "purpose", "groups", "rollouts", "right", "reward", "hinted", "tokens"),
        ("round", "purpose"),
        {"round": "round, purpose", "reward": "avg(reward), round, purpose"},
    ),
    "problems": _View(
        ("problem", "rounds", "rollouts", "right", "reward", "change", "tokens"),
        ("problem_id",),
        {
            "change": "abs(any_value(change)) desc nulls last, problem_id",
            "hardest": "avg(correct::int), problem_id",
            "name": "problem_id",
        },
        "use is null",
    ),
    "groups": _View(
        ("round", "purpose", "problem", "n", "right", "reward", "std", "hint", "tokens"),
        ("round", "purpose", "problem_id", "group_id", "rollouts_artifact"),
        {
            "round": "round, purpose, problem_id, group_id",
            "std": "stddev_pop(reward) desc nulls last, round, problem_id, group_id",
            "reward": "avg(reward), round, problem_id, group_id",
            "length": "avg(tokens) desc, round, problem_id, group_id",
        },
    ),
}


@dataclass(frozen=True)
class Listing:
    """A view of the rows that have the values of a scope, filtered and ordered.

    `condition` is what `RunRows.matching` returned.
    """

    rows: RunRows
    view: str
    scope: Mapping[str, Any] = field(default_factory=dict[str, Any])
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
        """Return whether a column ends at the right."""
        return COLUMNS[column][1] is not None

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
        return [self._line(row) for row in found]

    def _line(self, row: Row) -> Line:
        """Return the line of its keys and the values of its columns."""
        keys = VIEWS[self.view].keys
        looks = (COLUMNS[name][1] for name in self.columns)
        cells = tuple(look(value) if look else value for look, value in zip(looks, row[len(keys) :], strict=True))
        return dict(zip(keys, row, strict=False)), cells

    def _select(self) -> tuple[str, list[object]]:
        where = " and ".join([self.condition, VIEWS[self.view].condition, *(f"{name} = ?" for name in self.scope)])
        keys = ", ".join(VIEWS[self.view].keys)
        cells = ", ".join(f"{COLUMNS[name][0]} as cell_{place}" for place, name in enumerate(self.columns))
        return f"select {keys}, {cells} from sampled where {where} group by {keys}", list(self.scope.values())  # noqa: S608 - as above


def groups_of(rows: RunRows, problem: str) -> list[GroupKey]:
    """Return the groups of a problem by round."""
    found = rows.ask(
        f"select distinct {KEY} from sampled where problem_id = ? order by round, purpose, group_id",  # noqa: S608 - ours
        [problem],
    )
    return [GroupKey(*row) for row in found]
