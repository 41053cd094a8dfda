"""The difficulty of each problem for a policy: judged rollouts become counts, rates and their history.

    rows = add(measure(scores, rollouts), previous=None, round_index=0)     # a difficulty table
    rows = complete(pa.table({"problem_id": ["a"], "n": [8], "k": [3]}))    # a user's own counts, completed

A difficulty belongs to a problem *and* a policy. So `n`, `k`, `pass_rate` and `variance` speak of the newest policy
only (measurements of one policy are pooled, a new policy starts them anew), while `history`, `alpha` and `beta` keep
everything: a problem that was 0/8 and is 8/8 now has no variance left to learn from, and must not look like 8/16.
The posterior is Beta(1 + correct, 1 + wrong) over all measurements, without the decay of SPO and VADE.
`reward_n`, `reward_mean` and `reward_variance` stand for graded rewards what n and k are for verdicts: they describe
the rollouts of `reward_policy` alone, the newest policy with a reward. A problem may have rewards and no verdict
(n = k = 0): its pass rate is unmeasured.
Left out: item-response models, decay.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import (
    Bools,
    Column,
    Floats,
    Ints,
    bools,
    codes,
    floats,
    ints,
    nulls,
    one_array,
    pc,
    positions,
    ragged,
    take_or_null,
)
from gradus.data.curation.grading import Grades, merge, summarise
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import DIFFICULTY, OWN, ROLLOUTS, cast_to_schema


@dataclass(frozen=True)
class Measurement:
    """Rollouts of one policy: problem ids (P,), judged n (P,), correct k (P,), rewards (P,), what was not counted.

    Only problems with at least one verdict or reward are in it; `policy` is null if the rollouts have none.
    `unjudged` are the ids of the unhinted rollouts without a verdict, of which `num_failed` have no reward either.
    """

    problem_ids: pa.Array
    n: Ints
    k: Ints
    grades: Grades
    policy: str | None
    num_hinted: int
    num_failed: int
    unjudged: Column


def measure(scores: pa.Table, rollouts: pa.Table | None = None) -> Measurement:
    """Count judged and correct rollouts per problem, and sum up their rewards; only of the problems' own prompts.

    Rollouts with a hint, with a prompt of a wave's, or of another model are left out, and those that continue a stored
    one or take it up again.

    A score whose `correct` is null (time-out, error, a reward without a verdict) counts neither way; one whose `reward`
    is null is not part of mean and variance. Rollouts, if passed, hold the policy and the hint level;
    without them every score is taken as unhinted.
    Raises BadInputError for a score without its rollout, and for rollouts of more than one policy.
    """
    counted = np.ones(scores.num_rows, dtype=np.bool_)
    policy = None
    if rollouts is not None:
        where = _rollout_rows(scores, rollouts)
        own = bools(pc.equal(pc.coalesce(ROLLOUTS.column(rollouts, "origin"), OWN), OWN))
        own &= nulls(ROLLOUTS.column(rollouts, "recall"))
        policy = _single_policy(rollouts.column("policy").filter(pa.array(own)))
        bare = own & nulls(ROLLOUTS.column(rollouts, "messages")) & nulls(ROLLOUTS.column(rollouts, "parent"))
        bare &= ints(rollouts.column("hint_level")) == 0
        counted = bare[where]
    judged = counted & ~nulls(scores.column("correct"))
    rewarded = counted & ~nulls(scores.column("reward"))
    right = bools(scores.column("correct"))
    problem, ids = codes(scores.column("problem_id"))
    n = np.bincount(problem[judged], minlength=len(ids))
    k = np.bincount(problem[judged & right], minlength=len(ids))
    grades = summarise(floats(scores.column("reward"))[rewarded], problem[rewarded], num_groups=len(ids))
    measured = np.flatnonzero((n > 0) | (grades.n > 0))
    return Measurement(
        problem_ids=ids.take(pa.array(measured)),
        n=n[measured],
        k=k[measured],
        grades=grades.take(measured),
        policy=policy,
        num_hinted=int((~counted).sum()),
        num_failed=int((counted & ~judged & ~rewarded).sum()),
        unjudged=scores.column("rollout_id").filter(pa.array(counted & ~judged)),
    )


def complete(table: pa.Table) -> pa.Table:
    """Fill a difficulty table that has at least problem_id, n and k up to the full schema.

    Rate and variance always follow from n and k (null where n is 0); a missing history is the one rate, missing
    policies are null, a missing posterior is Beta(1 + k, 1 + n - k). Histories may be of any lengths.
    Raises BadInputError naming the first row whose counts or history cannot be.
    """
    table = cast_to_schema(table, DIFFICULTY)
    _refuse(table, nulls(table.column("n")) | nulls(table.column("k")), "has no n or no k")
    n, k = ints(table.column("n")), ints(table.column("k"))
    _refuse(table, (n < 0) | (k < 0) | (k > n), "does not have 0 <= k <= n")
    _refuse_grades(table)
    rate = np.divide(k, n, out=np.full(len(n), np.nan), where=n > 0)
    offsets, values = _history(table, rate)
    history = _lists(offsets, values)
    if table.column("policies").null_count:
        policies = _lists(offsets, pa.nulls(len(values), pa.string()))
        policies = pc.coalesce(table.column("policies"), policies)
    else:
        policies = table.column("policies")
    return _replace(
        table,
        pass_rate=pa.array(rate, mask=n == 0),
        variance=pa.array(rate * (1 - rate), mask=n == 0),
        history=history,
        policies=policies,
        alpha=pc.coalesce(table.column("alpha"), pa.array(1.0 + k)),
        beta=pc.coalesce(table.column("beta"), pa.array(1.0 + n - k)),
    )


def add(measurement: Measurement, previous: pa.Table | None, *, round_index: int) -> pa.Table:
    """The difficulty table after one more measurement: rows of before in their order, then the new problems.

    One measurement appends one entry to the history and the policies of each problem that it has a verdict on.
    """
    before = complete(previous if previous is not None else DIFFICULTY.arrow.empty_table())
    before = _with_new_rows(before, measurement.problem_ids)
    at = positions(before.column("problem_id"), measurement.problem_ids)
    new_n, new_k = np.append(measurement.n, 0)[at], np.append(measurement.k, 0)[at]  # -1 reads the zero at the end
    judged = new_n > 0
    pooled = ~judged | _last_is(before.column("policies"), measurement.policy)
    n = np.where(pooled, ints(before.column("n")), 0) + new_n
    k = np.where(pooled, ints(before.column("k")), 0) + new_k
    new_rate = new_k[judged] / new_n[judged]
    policies = pa.array([measurement.policy] * len(new_rate), pa.string())
    table = _replace(
        before,
        n=pa.array(n),
        k=pa.array(k),
        history=_append(before.column("history"), judged, pa.array(new_rate)),
        policies=_append(before.column("policies"), judged, policies),
        last_round=pc.if_else(pa.array(at >= 0), pa.scalar(round_index, pa.int32()), before.column("last_round")),
        alpha=pa.array(floats(before.column("alpha")) + new_k),
        beta=pa.array(floats(before.column("beta")) + new_n - new_k),
        **_graded(before, measurement, at),
    )
    return complete(table)


def _graded(before: pa.Table, measurement: Measurement, at: Ints) -> dict[str, Column]:
    """The reward columns after a measurement: merged if the policy is the same, else those of the newer one."""
    new, policy = measurement.grades.take(at), pa.scalar(measurement.policy, pa.string())
    fresh = new.n > 0
    same = bools(pc.equal(one_array(before.column("reward_policy")), policy))
    kept = before.column("reward_n").is_valid().to_numpy() & (~fresh | same)
    old = Grades(
        np.where(kept, ints(before.column("reward_n")), 0),
        *(np.where(kept, floats(before.column(name)), np.nan) for name in ("reward_mean", "reward_variance")),
    )
    merged, untouched = merge(old, new), pa.array(~fresh)
    found = {"reward_n": merged.n, "reward_mean": merged.mean, "reward_variance": merged.variance}
    columns = {
        name: pc.if_else(untouched, one_array(before.column(name)), pa.array(values)) for name, values in found.items()
    }
    named = pc.if_else(untouched, one_array(before.column("reward_policy")), policy)
    return {**columns, "reward_policy": named}


def _rollout_rows(scores: pa.Table, rollouts: pa.Table) -> Ints:
    where = positions(scores.column("rollout_id"), rollouts.column("rollout_id"))
    if (where < 0).any():
        lost = scores.column("rollout_id")[int(np.argmax(where < 0))].as_py()
        raise BadInputError(
            f"the score of rollout {lost!r} has no rollout ({int((where < 0).sum())} such scores)",
            hint="give the rollouts that these scores judge",
        )
    return where


def _single_policy(column: Column) -> str | None:
    policies = pc.unique(column.drop_null()).to_pylist()
    if len(policies) > 1:
        raise BadInputError(
            f"the rollouts come from {len(policies)} policies ({', '.join(sorted(policies)[:3])} ...)",
            hint="measure each policy alone",
        )
    return policies[0] if policies else None


def _refuse(table: pa.Table, bad: Bools, what: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        named = table.column("problem_id")[row].as_py()
        raise BadInputError(
            f"the difficulty row of {named!r} {what} ({int(bad.sum())} such rows)",
            hint="n counts judged rollouts, k the correct ones, history their pass rates between 0 and 1, "
            "reward_n the rollouts with a reward",
        )


def _refuse_grades(table: pa.Table) -> None:
    """Refuse rows whose reward columns cannot be: all of them null is what an older table has."""
    n = ints(table.column("reward_n"))
    mean, variance = floats(table.column("reward_mean")), floats(table.column("reward_variance"))
    _refuse(table, n < 0, "has a negative reward_n")
    _refuse(table, (n > 0) & ~np.isfinite(mean), "has rewards and no finite reward_mean")
    _refuse(table, (n > 0) & ~(np.isfinite(variance) & (variance >= 0)), "has rewards and no finite reward_variance")


def _history(table: pa.Table, rate: Floats) -> tuple[Ints, pa.Array]:
    """Return history as offsets and values, missing ones filled with the known rate; raise if there is none."""
    missing = nulls(table.column("history"))
    offsets, values = ragged(table.column("history"))
    alone = missing & ~np.isnan(rate)
    if alone.any():
        lists = _append(table.column("history"), alone, pa.array(rate[alone]))
        offsets, values = ragged(lists)
    flat = floats(values)
    row = np.repeat(np.arange(table.num_rows), np.diff(offsets))
    bad = np.zeros(table.num_rows, dtype=np.bool_)
    bad[row[~((flat >= 0) & (flat <= 1))]] = True  # NaN and null compare false, and are refused too
    _refuse(table, bad, "has a history entry that is no pass rate")
    return offsets, values


def _with_new_rows(before: pa.Table, problem_ids: pa.Array) -> pa.Table:
    new_ids = problem_ids.filter(pa.array(positions(problem_ids, before.column("problem_id")) < 0))
    zeros = pa.array(np.zeros(len(new_ids), dtype=np.int64))
    new = complete(pa.table({"problem_id": new_ids, "n": zeros, "k": zeros}))
    return pa.concat_tables([before, new], promote_options="default")


def _last_is(lists: Column, value: str | None) -> Bools:
    """Return whether the last entry of each list is the value; false for an empty list and for a null value."""
    offsets, values = ragged(lists)
    last = np.where(np.diff(offsets) > 0, offsets[1:] - 1, -1)
    return bools(pc.equal(take_or_null(values, last), pa.scalar(value, pa.string())))


def _append(lists: Column, where: Bools, new: pa.Array) -> pa.ListArray:
    """Append one new value to the lists selected; a null list is an empty one."""
    offsets, values = ragged(lists)
    grown = offsets + np.concatenate(([0], np.cumsum(where)))
    source = np.zeros(int(grown[-1]), dtype=np.int64)
    is_new = np.zeros(len(source), dtype=np.bool_)
    is_new[grown[1:][where] - 1] = True
    source[is_new] = len(values) + np.arange(len(new))
    source[~is_new] = np.arange(len(values))
    return _lists(grown, pa.concat_arrays([values, new]).take(pa.array(source)))


def _lists(offsets: Ints, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _replace(table: pa.Table, **columns: Column) -> pa.Table:
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, values.cast(field.type))
    return table
