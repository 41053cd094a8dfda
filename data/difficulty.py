"""How hard each problem is for a policy: judged rollouts become counts, rates and their history.

    rows = add(measure(scores, rollouts), previous=None, round_index=0)     # a difficulty table
    rows = complete(pa.table({"problem_id": ["a"], "n": [8], "k": [3]}))    # a user's own counts, completed

A difficulty belongs to a problem *and* a policy. So `n`, `k`, `pass_rate` and `variance` speak of the newest policy
only (measurements of one policy are pooled, a new policy starts them anew), while `history`, `alpha` and `beta` keep
everything: a problem that was 0/8 and is 8/8 now has no variance left to learn from, and must not look like 8/16.
The posterior is Beta(1 + correct, 1 + wrong) over all measurements, without the decay of SPO and VADE.
Left out: item-response models, decay.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from data.arrays import Bools, Floats, Ints, bools, codes, floats, ints, nulls, pc, positions, ragged, take_or_null
from data.errors import BadInputError
from data.schema import DIFFICULTY, conform


@dataclass(frozen=True)
class Measurement:
    """Judged rollouts of one policy: problem ids (P,), judged n (P,), correct k (P,), and what was not counted.

    Only problems with at least one judged rollout are in it; `policy` is null where the rollouts do not say.
    """

    problem_ids: Any
    n: Ints
    k: Ints
    policy: str | None
    num_unjudged: int
    num_hinted: int


def measure(scores: pa.Table, rollouts: pa.Table | None = None, *, unhinted_only: bool = True) -> Measurement:
    """Count judged and correct rollouts per problem.

    A score whose `correct` is null (time-out, error, a reward that judges nothing) counts neither way. Rollouts, where
    given, tell the policy and which completions saw a hint; without them every score is taken as unhinted.
    Raises BadInputError for a score without its rollout, and for rollouts of more than one policy.
    """
    counted = np.ones(scores.num_rows, dtype=np.bool_)
    policy = None
    if rollouts is not None:
        where = _rollout_rows(scores, rollouts)
        policy = _single_policy(rollouts.column("policy"))
        if unhinted_only:
            counted = ints(rollouts.column("hint_level"))[where] == 0
    judged = ~nulls(scores.column("correct"))
    right = bools(scores.column("correct"))
    problem, ids = codes(scores.column("problem_id"))
    use = counted & judged
    n = np.bincount(problem[use], minlength=len(ids))
    k = np.bincount(problem[use & right], minlength=len(ids))
    measured = n > 0
    return Measurement(
        problem_ids=ids.filter(pa.array(measured)),
        n=n[measured],
        k=k[measured],
        policy=policy,
        num_unjudged=int((counted & ~judged).sum()),
        num_hinted=int((~counted).sum()),
    )


def complete(table: pa.Table) -> pa.Table:
    """Fill a difficulty table that has at least problem_id, n and k up to the full schema.

    Rate and variance always follow from n and k (null where n is 0); a missing history is the one rate, missing
    policies are null, a missing posterior is Beta(1 + k, 1 + n - k). Histories may be of any lengths.
    Raises BadInputError naming the first row whose counts or history cannot be.
    """
    table = conform(table, DIFFICULTY)
    _refuse(table, nulls(table.column("n")) | nulls(table.column("k")), "has no n or no k")
    n, k = ints(table.column("n")), ints(table.column("k"))
    _refuse(table, (n < 0) | (k < 0) | (k > n), "does not have 0 <= k <= n")
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

    One measurement appends one entry to the history and the policies of each problem in it.
    """
    before = complete(previous if previous is not None else DIFFICULTY.arrow.empty_table())
    before = _with_new_rows(before, measurement.problem_ids)
    at = positions(before.column("problem_id"), measurement.problem_ids)
    fresh = at >= 0
    new_n, new_k = np.append(measurement.n, 0)[at], np.append(measurement.k, 0)[at]  # -1 reads the zero at the end
    pooled = ~fresh | _last_is(before.column("policies"), measurement.policy)
    n = np.where(pooled, ints(before.column("n")), 0) + new_n
    k = np.where(pooled, ints(before.column("k")), 0) + new_k
    new_rate = new_k[fresh] / new_n[fresh]
    num_fresh = int(fresh.sum())
    table = _replace(
        before,
        n=pa.array(n),
        k=pa.array(k),
        history=_append(before.column("history"), fresh, pa.array(new_rate)),
        policies=_append(before.column("policies"), fresh, pa.array([measurement.policy] * num_fresh, pa.string())),
        last_round=pc.if_else(pa.array(fresh), pa.scalar(round_index, pa.int32()), before.column("last_round")),
        alpha=pa.array(floats(before.column("alpha")) + new_k),
        beta=pa.array(floats(before.column("beta")) + new_n - new_k),
    )
    return complete(table)


def _rollout_rows(scores: pa.Table, rollouts: pa.Table) -> Ints:
    where = positions(scores.column("rollout_id"), rollouts.column("rollout_id"))
    if (where < 0).any():
        lost = scores.column("rollout_id")[int(np.argmax(where < 0))].as_py()
        raise BadInputError(
            f"the score of rollout {lost!r} has no rollout ({int((where < 0).sum())} such scores)",
            hint="give the rollouts that these scores judge",
        )
    return where


def _single_policy(column: Any) -> str | None:
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
            hint="n counts judged rollouts, k the correct ones, history their pass rates between 0 and 1",
        )


def _history(table: pa.Table, rate: Floats) -> tuple[Ints, Any]:
    """History with the one known rate where it is missing, as offsets and values; refused where no rate can be."""
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


def _with_new_rows(before: pa.Table, problem_ids: Any) -> pa.Table:
    new_ids = problem_ids.filter(pa.array(positions(problem_ids, before.column("problem_id")) < 0))
    zeros = pa.array(np.zeros(len(new_ids), dtype=np.int64))
    new = complete(pa.table({"problem_id": new_ids, "n": zeros, "k": zeros}))
    return pa.concat_tables([before, new], promote_options="default")


def _last_is(lists: Any, value: str | None) -> Bools:
    """Whether the last entry of each list is the value; false for an empty list and for a null value."""
    offsets, values = ragged(lists)
    last = np.where(np.diff(offsets) > 0, offsets[1:] - 1, -1)
    return bools(pc.equal(take_or_null(values, last), pa.scalar(value, pa.string())))


def _append(lists: Any, where: Bools, new: Any) -> Any:
    """Append one new value to the lists selected; a null list is an empty one."""
    offsets, values = ragged(lists)
    grown = offsets + np.concatenate(([0], np.cumsum(where)))
    source = np.zeros(int(grown[-1]), dtype=np.int64)
    is_new = np.zeros(len(source), dtype=np.bool_)
    is_new[grown[1:][where] - 1] = True
    source[is_new] = len(values) + np.arange(len(new))
    source[~is_new] = np.arange(len(values))
    return _lists(grown, pa.concat_arrays([values, new]).take(pa.array(source)))


def _lists(offsets: Ints, values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _replace(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, values.cast(field.type))
    return table


def candidates(problems: pa.Table, difficulty: pa.Table | None) -> pa.Table:
    """Problems with what is known of their difficulty beside them, in the order of the problems.

    A problem without a difficulty row, or with one of n = 0, is unmeasured: its pass_rate is null. Raises
    BadInputError where a difficulty table is given and names none of the problems: ids that never match are a mistake.
    """
    measured = complete(difficulty if difficulty is not None else DIFFICULTY.arrow.empty_table())
    at = positions(problems.column("problem_id"), measured.column("problem_id"))
    if measured.num_rows and problems.num_rows and not (at >= 0).any():
        theirs, ours = measured.column("problem_id")[0].as_py(), problems.column("problem_id")[0].as_py()
        raise BadInputError(
            f"none of the {measured.num_rows} difficulty rows names a problem of the problems table",
            hint=f"the difficulty says {theirs!r} where the problems say {ours!r}",
        )
    table = problems
    for name in ("n", "k", "pass_rate", "variance", "history"):
        table = table.append_column(name, take_or_null(measured.column(name), at))
    return table
