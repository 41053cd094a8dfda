"""The difficulty of each problem for a policy: judged rollouts become counts, rates and their history.

    rows = add(measure(tally), previous=None, round_index=0)                # a difficulty table
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

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from gradus.data.arrays import (
    Bools,
    Column,
    Floats,
    Ints,
    bools,
    floats,
    ints,
    nulls,
    one_array,
    pc,
    positions,
    ragged,
    runs,
    take_or_null,
    totals,
)
from gradus.data.curation.grading import Grades, merge, summarise
from gradus.data.curation.helped import EffectOfHelp
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import DIFFICULTY, cast_to_schema
from gradus.data.lake.tally import BARE, LOST, WITHOUT_ROLLOUT, Tally


@dataclass(frozen=True)
class Measurement:
    """Rollouts of one policy: problem ids (P,), judged n (P,), correct k (P,), rewards (P,), what was not counted.

    Only problems with at least one verdict or reward are in it; `policy` is null if the rollouts have none.
    `num_unjudged` unhinted rollouts have no verdict, and `num_failed` of them no reward either.
    """

    problem_ids: pa.Array
    n: Ints
    k: Ints
    grades: Grades
    policy: str | None
    num_scores: int
    num_rewarded: int
    num_hinted: int
    num_unjudged: int
    num_failed: int
    help: EffectOfHelp = field(default_factory=EffectOfHelp)


def measure(tally: Tally) -> Measurement:
    """Count judged and correct rollouts per problem, and sum up their rewards; only of the problems' own prompts.

    Rollouts with a hint, with a prompt of a wave's, or of another model are left out, and those that continue a stored
    one or take it up again. Problems come in the order of their first scores.

    A score whose `correct` is null (time-out, error, a reward without a verdict) counts neither way; one whose `reward`
    is null is not part of mean and variance. Rewards are added in the order of their size.
    Raises BadInputError for a score without its rollout, or with several, and for rollouts of more than one policy.
    """
    policy = _single(tally.policies)
    parts, help_, sums = list[_Part](), EffectOfHelp(), np.zeros(6, dtype=np.int64)
    for rows in tally.counts():
        part, numbers = _part(rows)
        parts.append(part)
        sums += numbers
        help_ = help_.with_rows(rows)
    num_scores, num_rewarded, num_bare, num_unjudged, num_failed, num_lost = sums.tolist()
    if num_lost:
        (lost,) = tally.rollout_ids(WITHOUT_ROLLOUT, 1)
        raise BadInputError(
            f"the score of rollout {lost!r} has no rollout ({num_lost} such scores)",
            hint="give the rollouts that these scores judge",
        )
    if num_scores != tally.num_scores:
        raise BadInputError(
            f"rollouts of {num_scores - tally.num_scores} scores are there more than once",
            hint="give each rollout once",
        )
    whole = _Part.of(parts)
    order = np.argsort(whole.place)
    order = order[((whole.n > 0) | (whole.grades.n > 0))[order]]
    return Measurement(
        problem_ids=whole.ids.take(pa.array(order)),
        n=whole.n[order],
        k=whole.k[order],
        grades=whole.grades.take(order),
        policy=policy,
        num_scores=num_scores,
        num_rewarded=num_rewarded,
        num_hinted=num_scores - num_bare,
        num_unjudged=num_unjudged,
        num_failed=num_failed,
        help=help_,
    )


@dataclass(frozen=True)
class _Part:
    """Some problems: ids, the place of the first score, judged n, correct k, rewards, each (P,)."""

    ids: pa.Array
    place: Ints
    n: Ints
    k: Ints
    grades: Grades

    @classmethod
    def of(cls, parts: Sequence["_Part"]) -> "_Part":
        place, n, k = (np.concatenate([getattr(part, name) for part in parts]) for name in ("place", "n", "k"))
        grades = (np.concatenate([getattr(part.grades, name) for part in parts]) for name in ("n", "mean", "variance"))
        return cls(pa.concat_arrays([part.ids for part in parts]), place, n, k, Grades(*grades))


def _part(rows: pa.Table) -> tuple[_Part, Ints]:
    """Return whole problems, rows of a tally, and six counts of their scores.

    All; those with a reward; the bare ones; bare ones without a verdict; with neither verdict nor reward; those without
    a rollout.
    """
    problem, ids = runs(rows.column("problem_id"))
    n, kind, right = ints(rows.column("n")), ints(rows.column("kind")), bools(rows.column("correct"))
    rewarded, judged, bare = ~nulls(rows.column("reward")), ~nulls(rows.column("correct")), kind == BARE
    unjudged = bare & ~judged
    place = np.full(len(ids), np.iinfo(np.int64).max)
    np.minimum.at(place, problem, ints(rows.column("place")))
    judged_n, right_n = (totals(problem, chosen, n, len(ids)) for chosen in (bare & judged, bare & judged & right))
    at = np.flatnonzero(bare & rewarded)
    grades = summarise(floats(rows.column("reward"))[at], problem[at], num_groups=len(ids), times=n[at])
    numbers = (n > 0, rewarded, bare, unjudged, unjudged & ~rewarded, kind == LOST)
    return _Part(ids, place, judged_n, right_n, grades), np.array([n[chosen].sum() for chosen in numbers])


def complete(table: pa.Table) -> pa.Table:
    """Fill a difficulty table that has at least problem_id, n and k up to the full schema.

    Rate and variance follow from n and k; where n is 0 a given rate stays, that of an unknown number of rollouts. A
    missing history is the one rate, missing policies are null, a missing posterior is Beta(1 + k, 1 + n - k). Histories
    may have any lengths.
    Raises BadInputError naming the first row whose counts or history cannot be.
    """
    table = cast_to_schema(table, DIFFICULTY)
    _refuse(table, nulls(table.column("n")) | nulls(table.column("k")), "has no n or no k")
    n, k = ints(table.column("n")), ints(table.column("k"))
    _refuse(table, (n < 0) | (k < 0) | (k > n), "does not have 0 <= k <= n")
    _refuse_grades(table)
    rate = np.divide(k, n, out=floats(table.column("pass_rate")).copy(), where=n > 0)
    offsets, values = _history(table, rate)
    history = _lists(offsets, values)
    if table.column("policies").null_count:
        policies = _lists(offsets, pa.nulls(len(values), pa.string()))
        policies = pc.coalesce(table.column("policies"), policies)
    else:
        policies = table.column("policies")
    return _replace(
        table,
        pass_rate=pa.array(rate, mask=np.isnan(rate)),
        variance=pa.array(rate * (1 - rate), mask=np.isnan(rate)),
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
    at = np.arange(before.num_rows)
    if previous is not None:
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


def _single(policies: Sequence[str]) -> str | None:
    if len(policies) > 1:
        raise BadInputError(
            f"the rollouts come from {len(policies)} policies ({', '.join(policies[:3])} ...)",
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
