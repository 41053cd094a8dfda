"""Uses of rows: those that are learned from, and others (judge, critique ...), which say something of them.

A component names a column of the rows of another use behind that: `needs = ("reward", "judge: about")`.
"""

import re

import pyarrow as pa

from gradus.data.arrays import pc

LEARN, POLICY = "learn", "policy"
"""The use and the role of rows that name none."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Name of a use or of a role."""
_BETWEEN = ": "


def of_use(table: pa.Table, use: str) -> pa.Table:
    """Return the rows of a use; a table without the column `use` has rows of the use `learn` alone."""
    return _named(table, "use", use, LEARN)


def other_uses(table: pa.Table) -> pa.Table:
    """Return the rows that are not learned from."""
    if "use" not in table.column_names:
        return table.slice(0, 0)
    return table.filter(pc.invert(pc.equal(pc.coalesce(table.column("use"), LEARN), LEARN)))


def of_role(table: pa.Table, role: str) -> pa.Table:
    """Return the rows of a role; a table without the column `role` has rows of the policy alone."""
    return _named(table, "role", role, POLICY)


def _named(table: pa.Table, column: str, name: str, usual: str) -> pa.Table:
    if column not in table.column_names:
        return table if name == usual else table.slice(0, 0)
    return table.filter(pc.equal(pc.coalesce(table.column(column), usual), name))


def split_need(need: str) -> tuple[str, str]:
    """Return the use and the column of a need; the use is `learn` if it names none.

    >>> split_need("judge: reward"), split_need("reward")
    (('judge', 'reward'), ('learn', 'reward'))
    """
    use, between, column = need.partition(_BETWEEN)
    return (use, column) if between else (LEARN, need)
