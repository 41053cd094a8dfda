"""Counts of a plan against the rollouts on disk.

Prompts are rows of plans; one is kept if all its rollouts were on disk, and lost if at the end not all of them are.

    account_of(plan, kept, there)  # {"prompts": {"planned": 736, "kept": 675, "again": 61, "lost": 0}, ...}
"""

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Column, Ints, ints, one_array, pc, positions
from gradus.data.errors import StageError
from gradus.data.lake.schema import PLAN, ROLLOUTS
from gradus.tasks.runs.records import Account, counted

KEYS = ("rollout_id", "plan_id", "group_id")
"""The columns of rollouts that are counted."""


def account_of(plan: pa.Table, kept: pa.Table, there: pa.Table) -> Account:
    """Count a plan against the rollouts that were on disk when its stage continued, and those at its end.

    Raise StageError if one is lost: the others must not be learned from.
    """
    asked = ints(plan.column("n"))
    before, after = np.minimum(_num_of(plan, kept), asked), np.minimum(_num_of(plan, there), asked)
    if (after < asked).any():
        first = _named(PLAN.column(plan, "plan_id"), plan.column("group_id"))[int(np.argmax(after < asked))]
        raise StageError(
            f"{int((after < asked).sum())} of {len(asked)} prompts were lost when the run continued: "
            f"{int((asked - after).sum())} of {int(asked.sum())} rollouts are in no shard, the first of {first}",
            hint="delete the folder of that rollouts artifact and run the same command again",
        )
    whole = int((before == asked).sum())
    return {
        "prompts": counted(len(asked), whole),
        "rollouts": counted(int(asked.sum()), int(before.sum())),
    }


def _num_of(plan: pa.Table, rollouts: pa.Table) -> Ints:
    """Return the number of rollouts of each plan row, (P,); a repeated id counts once."""
    ids = rollouts.column("rollout_id")
    found = rollouts.take(pa.array(np.unique(positions(ids, ids))))
    of_plan = _named(PLAN.column(plan, "plan_id"), plan.column("group_id"))
    at = positions(_named(ROLLOUTS.column(found, "plan_id"), found.column("group_id")), of_plan)
    return np.bincount(at[at >= 0], minlength=plan.num_rows)


def _named(own: Column, group: Column) -> pa.Array:
    return one_array(pc.coalesce(own, group))
