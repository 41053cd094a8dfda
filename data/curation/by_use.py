"""Rows of a table by their use, or by the role that sampled them."""

import pyarrow as pa

from gradus.data.arrays import pc
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.lake.schema import OWN, ROLLOUTS


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


def seen_by(table: pa.Table, role: str) -> pa.Table:
    """Return rows as a role that is trained sees them: what it sampled is learned from, as its own writing.

    The rows that the policy learns from have the use `policy` then; those of other roles keep theirs. The policy, the
    empty role, sees rows as they are.
    """
    if not role:
        return table
    use, origin, by = (ROLLOUTS.column(table, name) for name in ("use", "origin", "role"))
    others = pc.if_else(pc.equal(pc.coalesce(use, LEARN), LEARN), POLICY, use)
    use = pc.if_else(pc.equal(pc.coalesce(by, POLICY), role), LEARN, others)
    origin = pc.if_else(pc.equal(pc.coalesce(origin, OWN), role), OWN, origin)
    for name, values in (("use", use), ("origin", origin)):
        table = table.drop_columns([name]) if name in table.column_names else table
        table = table.append_column(name, values)
    return table


def _named(table: pa.Table, column: str, name: str, usual: str) -> pa.Table:
    if column not in table.column_names:
        return table if name == usual else table.slice(0, 0)
    return table.filter(pc.equal(pc.coalesce(table.column(column), usual), name))
