"""Plan rows that build on what is there: `parent` is continued from a token on, `recall` is taken up again.

A row may also be `given` the text of its completion.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Ints, bools, codes, ints, nulls, one_array, pc, positions
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import OWN, PLAN, ROLLOUTS

OF_PARENT = ("branch_at", "inserted", "inherits", "replaces")
"""Columns of a plan that say how a row continues its parent."""
INHERITS = ("context", "trained")
_NAMED = ("rollout_id", "problem_id", "hint_level", "group_id")


class StoredError(ValueError):
    """A rollout that is not there."""


def known_rollouts(rows: pa.Table, earlier: pa.Table | None) -> pa.Table:
    """Return id, problem, hint level and group of the rollouts that plan rows may name: the round's, then earlier."""
    return pa.concat_tables([table.select(_NAMED) for table in (rows, earlier) if table is not None])


def places_of(named: Any, known: pa.Table, num_rows: int) -> Ints:
    """Return where the named rollouts stand among those known, (P,); -1 for none.

    They are named by id, or by the number of one of the first `num_rows`; None or -1 names none. StoredError for one
    that is not there.
    """
    values = [named] if isinstance(named, str) or np.ndim(named) == 0 else list(named)
    ids = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    numbers = np.array([-1 if value is None or isinstance(value, str) else value for value in values], dtype=np.int64)
    if len(odd := numbers[(numbers >= num_rows) | (numbers < -1)]):
        raise StoredError(f"it names row {odd[0]} of {num_rows}")
    found = positions(ids, known.column("rollout_id"))
    if len(odd := np.flatnonzero((found < 0) & ~nulls(ids))):
        raise StoredError(f"it names rollout {values[odd[0]]}, which is neither of this round nor among the stored")
    return np.where(nulls(ids), numbers, found)


def joined(names: pa.Array, together: Sequence[int] | pa.Array) -> pa.Array:
    """Return the group of each plan row (P,): that of the first with its number in `together`; its own name for null.

    >>> joined(pa.array(["a", "b", "c"]), pa.array([7, None, 7])).to_pylist()
    ['a', 'b', 'a']
    """
    number, alone = codes(pa.array(together))[0], nulls(pa.array(together))
    _, first, back = np.unique(number, return_index=True, return_inverse=True)
    return names.take(pa.array(np.where(alone, np.arange(len(names)), first[back])))


def builds_on(plan: pa.Table) -> Bools:
    """Return which rows of a plan build on a stored rollout, (P,)."""
    return ~(nulls(PLAN.column(plan, "parent")) & nulls(PLAN.column(plan, "recall")))


def named_by(plan: pa.Table) -> pa.Array:
    """Return the ids of the rollouts that a plan builds on, each once."""
    ids = [one_array(PLAN.column(plan, name)).cast(pa.string()).drop_null() for name in ("parent", "recall")]
    return pc.unique(pa.concat_arrays(ids))


def refuse_odd_stored(plan: pa.Table) -> None:
    """Raise BadInputError naming the first row that contradicts itself in the rollout or the text that it builds on."""
    parent, recall, given = (~nulls(PLAN.column(plan, name)) for name in ("parent", "recall", "given"))
    own = bools(pc.equal(pc.coalesce(one_array(PLAN.column(plan, "origin")).cast(pa.string()), OWN), OWN))
    of_parent = np.logical_or.reduce([~nulls(PLAN.column(plan, name)) for name in OF_PARENT])
    inherits = one_array(PLAN.column(plan, "inherits"))
    known = bools(pc.is_in(inherits, value_set=pa.array(INHERITS))) | nulls(inherits)
    for bad, what, hint in (
        (parent & recall, "continues one rollout and takes up another again", "set parent or recall, not both"),
        (recall & (ints(plan.column("n")) != 1), "takes up a stored rollout again more than once", "set n = 1"),
        (given & (parent | recall), "is given a text and builds on a rollout", "set given, parent or recall"),
        (given & (ints(plan.column("n")) != 1), "is given a text more than once", "set n = 1"),
        (
            given & own,
            f"is given a text of the origin {OWN}",
            "set origin, such as expert: the policy did not write it",
        ),
        (of_parent & ~parent, f"sets one of {', '.join(OF_PARENT)} without a parent", "set parent, or leave it out"),
        (~known, "inherits neither as context nor as trained", f"set inherits to {' or '.join(INHERITS)}"),
    ):
        if bad.any():
            name = plan.column("problem_id")[int(np.argmax(bad))].as_py()
            raise BadInputError(f"a row of the plan, of problem {name}, {what}", hint=hint)


def replaced_parents(table: pa.Table) -> Bools:
    """Return which rows another one of the table continues and takes the place of, (N,): a judged one."""
    replacing = bools(ROLLOUTS.column(table, "replaces")) & ~nulls(table.column("reward"))
    parents = one_array(ROLLOUTS.column(table, "parent")).filter(pa.array(replacing))
    return bools(pc.is_in(one_array(table.column("rollout_id")).cast(pa.string()), value_set=parents))
