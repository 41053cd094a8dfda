"""The rollouts of a round as waves see them: beside each its score, its plan row and its problem.

Those that are learned from come first, and number the groups; rows of other uses stand beside them.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from gradus.data.arrays import Ints, codes, ints, one_array, pc, positions, take_or_null
from gradus.data.curation.by_use import of_use, other_uses
from gradus.data.curation.round import GROUP, RoundRows
from gradus.data.curation.uses import LEARN
from gradus.data.lake.schema import LENGTH, OF_PLAN, OF_PROBLEM, PLAN, ROLLOUTS
from gradus.tasks.stages.context import StageContext


def round_rows(ctx: StageContext, reads: Mapping[str, Sequence[str]]) -> tuple[RoundRows, pa.Array]:
    """Return the rollouts of a round beside their scores, plan rows and problems, and the names of the groups, (G,).

    `reads` names the columns of each role (gradus.tasks.config.round_columns); those of a missing role are not there.
    """
    given = ctx.table("rollouts", reads["rollouts"])
    learned = of_use(given, LEARN)
    whole, names = _joined(ctx, reads, pa.concat_tables([learned, other_uses(given)]))
    rows = whole.slice(0, learned.num_rows)
    num_groups = int(ints(rows.column(GROUP)).max(initial=-1)) + 1
    return RoundRows(rows, beside=whole.slice(learned.num_rows)), names.slice(0, num_groups)


def _joined(ctx: StageContext, reads: Mapping[str, Sequence[str]], rollouts: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Return rollouts beside their scores, plan rows and problems, and the names of their groups."""
    for name in ("wave", "call"):
        filled = pc.fill_null(ROLLOUTS.column(rollouts, name), 0)
        rollouts = rollouts.drop_columns([name]) if name in rollouts.column_names else rollouts
        rollouts = rollouts.append_column(name, filled)
    group, names = codes(pc.coalesce(rollouts.column("group_id"), rollouts.column("problem_id")))
    table = rollouts.append_column(GROUP, pa.array(group))
    if "completion_tokens" in reads["rollouts"]:
        table = table.append_column(LENGTH, pc.list_value_length(one_array(table.column("completion_tokens"))))
    scores = ctx.table("scores", reads["scores"])
    at = positions(table.column("rollout_id"), scores.column("rollout_id"))
    table = _beside(table, scores, at)
    if ctx.inputs.get("problems"):
        problems = ctx.table("problems", reads["problems"])
        at = positions(table.column("problem_id"), problems.column("problem_id"))
        table = _beside(table, problems, at, OF_PROBLEM)
    if not ctx.inputs.get("plan"):
        return table, names
    plans = ctx.table("plan", reads["plan"])
    keys = pc.coalesce(PLAN.column(plans, "plan_id"), plans.column("group_id"))
    own = pc.coalesce(ROLLOUTS.column(rollouts, "plan_id"), rollouts.column("group_id"))
    return _beside(table, plans, positions(own, keys), OF_PLAN), names


def _beside(table: pa.Table, other: pa.Table, at: Ints, prefix: str = "") -> pa.Table:
    """Return a table with the columns of another that it lacks, whose rows stand at these places (-1: null)."""
    for name in other.column_names:
        if prefix + name not in table.column_names:
            table = table.append_column(prefix + name, take_or_null(one_array(other.column(name)), at))
    return table
