"""The rollouts of a round as waves see them: beside each its score, its plan row and its problem.

Those that are learned from come first, and number the groups; rows of other uses stand beside them.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from gradus.components.chosen import HINT_TEXTS
from gradus.data.arrays import Ints, codes, ints, looked_up, nulls, one_array, pc, positions, take_or_null
from gradus.data.curation.by_use import of_use, other_uses, seen_by
from gradus.data.curation.continued import replaced_parents
from gradus.data.curation.plan import hint_texts
from gradus.data.curation.round import GROUP, RoundRows
from gradus.data.curation.tracked import with_tracked
from gradus.data.curation.uses import LEARN
from gradus.data.lake.schema import LENGTH, OF_PLAN, OF_PROBLEM, PLACES, PLAN, PROBLEMS, ROLLOUTS
from gradus.data.lake.train_states import lineage
from gradus.data.table_rows import TableRows
from gradus.tasks.artifacts.policies import with_places
from gradus.tasks.config.rounds import tracked_columns
from gradus.tasks.stages.context import StageContext

T = TypeVar("T", bound=TableRows)


def round_rows(ctx: StageContext, reads: Mapping[str, Sequence[str]], role: str = "") -> tuple[RoundRows, pa.Array]:
    """Return the rollouts of a round beside their scores, plan rows and problems, and the names of the groups, (G,).

    `reads` names the columns of each role (gradus.tasks.config.rounds); those of a missing role are not there.
    `role` is the one whose rows are learned from, empty for the policy.
    """
    parts = [ctx.store.read(ref, reads["rollouts"]) for ref in ctx.inputs["rollouts"]]
    if {*PLACES} & {*reads["rollouts"]}:
        parts = with_places(ctx.store, ctx.inputs["rollouts"], parts)
    given = seen_by(pa.concat_tables(parts, promote_options="default"), role)
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
    rollouts = ROLLOUTS.filled(rollouts, reads["rollouts"])
    group, names = codes(pc.coalesce(rollouts.column("group_id"), rollouts.column("problem_id")))
    table = rollouts.append_column(GROUP, pa.array(group))
    if "completion_tokens" in reads["rollouts"]:
        table = table.append_column(LENGTH, pc.list_value_length(one_array(table.column("completion_tokens"))))
    scores = ctx.table("scores", reads["scores"])
    at = positions(table.column("rollout_id"), scores.column("rollout_id"))
    table = beside(table, scores, at)
    if ctx.inputs.get("problems"):
        table = beside_problems(table, ctx.table("problems", reads["problems"]), reads["problems"])
    if not ctx.inputs.get("plan"):
        return table, names
    plans = PLAN.filled(ctx.table("plan", reads["plan"]), reads["plan"])
    keys = pc.coalesce(PLAN.column(plans, "plan_id"), plans.column("group_id"))
    own = pc.coalesce(ROLLOUTS.column(rollouts, "plan_id"), rollouts.column("group_id"))
    return beside(table, plans, positions(own, keys), OF_PLAN), names


def beside_problems(table: pa.Table, problems: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return rows with the columns of their problems beside them, `problem.NAME`; sparse ones of `columns` too."""
    problems = PROBLEMS.filled(problems, columns)
    at = positions(table.column("problem_id"), problems.column("problem_id"))
    return beside(table, problems, at, OF_PROBLEM)


def beside_hints(ctx: StageContext, rows: T) -> T:
    """Return rows with the hints of their problems beside them; see gradus.data.curation.plan.hint_texts."""
    texts = hint_texts(ctx.table("hints"), rows.table.column("problem_id"))
    return rows.over(rows.table.append_column(HINT_TEXTS, texts))


def beside_tracked(ctx: StageContext, rows: T, tracked: Mapping[str, Sequence[str]]) -> T:
    """Return rows with columns of trackers beside them; `tracked` has the key columns of each by its name."""
    columns = tracked_columns(tracked).get("trackers", ())
    return with_tracked(rows, tracked, [ctx.store.read(ref, columns) for ref in ctx.inputs.get("trackers", ())])


_STORED = (
    *("rollout_id", "problem_id", "group_id", "round", "hint_level", "finish_reason", "policy"),
    *("recall", "parent", "replaces"),
)
"""The columns that are read of rollouts of earlier rounds: neither texts nor tokens."""


def stored_rows(ctx: StageContext, max_age: int) -> RoundRows:
    """Return judged rollouts of earlier rounds by policies at most `max_age` updates older than the one that samples.

    Rows that took another up again are left out, and those that another took the place of.
    """
    if not ctx.inputs.get("stored_rollouts"):
        empty = {name: pa.array([], ROLLOUTS.type_of(name)) for name in _STORED}
        numbers = {name: pa.array([], pa.int64()) for name in ("age", GROUP, "reward", "correct")}
        return RoundRows(pa.table({**empty, **numbers}))
    table = ctx.table("stored_rollouts", _STORED)
    known = lineage(ctx.store, ctx.one("sampler"), max_age)
    ages = pa.array(list(known.values()), pa.int64())
    age = take_or_null(ages, positions(table.column("policy"), pa.array(list(known))))
    scores = ctx.table("stored_scores", ("rollout_id", "reward", "correct"))
    table = looked_up(table, "rollout_id", scores, ("reward", "correct")).append_column("age", age)
    own = nulls(ROLLOUTS.column(table, "recall")) & ~replaced_parents(table)
    table = table.filter(pa.array(own & ~nulls(age) & ~nulls(table.column("reward"))))
    group, _ = codes(pc.coalesce(table.column("group_id"), table.column("problem_id")))
    return RoundRows(table.append_column(GROUP, pa.array(group)))


def beside(table: pa.Table, other: pa.Table, at: Ints, prefix: str = "") -> pa.Table:
    """Return a table with the columns of another that it lacks, whose rows stand at these places (-1: null)."""
    for name in other.column_names:
        if prefix + name not in table.column_names:
            table = table.append_column(prefix + name, take_or_null(one_array(other.column(name)), at))
    return table
