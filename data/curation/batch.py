"""The batch of an update: of each rollout its group and its reward, and whether it is learned from, or why not.

    batch = first_batch(rows)                               # GHPO's rule, and the groups of rows of other origins
    batch, metrics = shaped(batch, [Shape("gate", gate)])   # functions of its rows, one after the other
    table = judged(batch)                                   # rows without a reward are left out

A shape is a function `(rows, [rng], *, settings) -> {name: (N,)}` of the N rows that are not left out so far. It may
return `reward`; `group`, numbers of groups; `taken`, and `reason` for rows that it leaves out; `weight`, a factor of
the loss of a row's tokens, NaN for 1; `term`, a text that `rows` of a term of the objective names; `credit`, a number
for each completion token of a row; `marks`, parts of it (gradus.components.marks) beside those that are there. A number
of a group that is there is that group. Any other name is a metric, the mean of its finite values.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gradus.components.marks import MarkError, marks_of
from gradus.components.rows import Lists
from gradus.components.settings import MAX_TOKENS
from gradus.data.arrays import Bools, Ints, bools, codes, floats, ints, nulls, one_array, pc
from gradus.data.curation.continued import replaced_parents
from gradus.data.curation.round import GROUP, RoundRows
from gradus.data.lake.schema import BATCH, MARKS, OF_MARKS, OWN, cast_to_schema

REPLACED = "its problem was sampled again with a hint, and every row of its group failed"
UNJOINED = "the policy has no group of its problem that it could join"
UNJUDGED = "it has no reward"
CONTINUED = "a row that continues it takes its place"
TAKEN, REASON, WEIGHT, TERM, CREDIT = "taken", "reason", "weight", "term", "credit"
SETTABLE = ("reward", GROUP, TAKEN, REASON, WEIGHT, TERM, CREDIT, MARKS)
"""Columns that a shape can return; other names are metrics."""


class BatchRows(RoundRows):
    """Rollouts as shapes see them: columns of a round, and what is decided of each row so far."""

    known: ClassVar[Collection[str]] = (*RoundRows.known, WEIGHT, TERM, CREDIT)


class ShapeError(ValueError):
    """A column that a shape cannot return."""


@dataclass(frozen=True)
class Shape:
    """A shape with its settings bound, as the recipe has it."""

    name: str
    function: Callable[..., Mapping[str, Any]]
    needs: Collection[str] | None = None
    rng: np.random.Generator | None = None
    """The generator of one that draws."""

    def __call__(self, rows: BatchRows) -> Mapping[str, Any]:
        """Return the columns that it changes."""
        seen = rows.reading(self.needs, f"shape {self.name}")
        return self.function(seen) if self.rng is None else self.function(seen, self.rng)


@dataclass(frozen=True)
class Batch:
    """Rollouts with their scores (N,), and what is decided of each."""

    table: pa.Table
    """Columns of the round, and `group`, `taken`, `reason` and, where a shape made them, `weight`, `term`, `credit` and
    `marks`."""
    groups: Sequence[str]
    """(G,): the name of each group by its number."""
    made: Mapping[int, str]
    """The names of groups that shapes made, by number."""
    beside: pa.Table | None = None
    """Rows of other uses, which say something of these."""

    @property
    def kept(self) -> Ints:
        """Numbers of the rows that are not left out."""
        return np.flatnonzero(bools(self.table.column(TAKEN)))

    @property
    def rows(self) -> BatchRows:
        """The rows that are not left out, as a shape sees them."""
        return BatchRows(self.table.take(pa.array(self.kept)), beside=self.beside)

    def setting(self, name: str, values: pa.Array) -> "Batch":
        """Return the batch with another column, or a new one."""
        place = self.table.schema.get_field_index(name)
        table = self.table.append_column(name, values) if place < 0 else self.table.set_column(place, name, values)
        return replace(self, table=table)

    def leaving_out(self, rows: Bools, reason: str | Sequence[str]) -> "Batch":
        """Return the batch without some of its rows (N,), for one reason or one each; those left out keep theirs."""
        new = rows & bools(self.table.column(TAKEN))
        if not new.any():
            return self
        said = np.array(self.table.column(REASON).to_pylist(), dtype=np.object_)
        said[new] = reason if isinstance(reason, str) else np.array(reason, dtype=np.object_)[new]
        found = self.setting(TAKEN, pa.array(bools(self.table.column(TAKEN)) & ~rows))
        return found.setting(REASON, pa.array(said.tolist(), pa.string()))


def first_batch(rows: pa.Table, *, drop_replaced_groups: bool = True, beside: pa.Table | None = None) -> Batch:
    """Return the batch of rollouts with their scores before any shape.

    `rows` have rollout_id, problem_id, group_id, hint_level, origin, reward and correct. Rows without a group id are
    grouped by their problem; those of other origins than the policy join its own group of the problem, of several the
    one of the highest hint level, the later one of two, and are left out if there is none. A row that another continues
    and takes the place of is left out. If a problem was retried with a hint (GHPO, arXiv 2507.10628), its earlier
    all-wrong groups are left out; its last group never is. Later means a higher hint level, then the order of the rows.
    All wrong means that every row was judged and none is right. `beside` are rows of other uses.
    """
    number, names = codes(pc.coalesce(rows.column("group_id"), rows.column("problem_id")))
    dropped = np.isin(number, _replaced(rows, number)) if drop_replaced_groups else np.zeros(len(number), np.bool_)
    group, alone = _joined(rows, number, dropped)
    place = rows.schema.get_field_index(GROUP)
    table = rows if place < 0 else rows.remove_column(place)
    table = table.append_column(GROUP, pa.array(group)).append_column(TAKEN, pa.array(np.ones(len(group), np.bool_)))
    table = table.append_column(REASON, pa.nulls(len(group), pa.string()))
    batch = Batch(table, names.to_pylist(), {}, beside)
    return (
        batch.leaving_out(dropped, REPLACED).leaving_out(alone, UNJOINED).leaving_out(replaced_parents(rows), CONTINUED)
    )


def shaped(batch: Batch, shapes: Sequence[Shape]) -> tuple[Batch, dict[str, float]]:
    """Return the batch after some shapes, and their metrics by name; ShapeError for what none can return."""
    metrics = dict[str, float]()
    for shape in shapes:
        kept, found = batch.kept, dict(shape(batch.rows))
        reasons = _texts(REASON, found.pop(REASON, ""), len(kept))
        for name, values in found.items():
            checked = _checked(name, values, len(kept))
            if name == TAKEN:
                out = np.zeros(batch.table.num_rows, dtype=np.bool_)
                out[kept] = ~checked
                said = np.full(len(out), "", dtype=np.object_)
                said[kept] = [each or f"left out by the shape {shape.name}" for each in reasons]
                batch = batch.leaving_out(out, said.tolist())
            elif name in SETTABLE:
                batch = _with(batch, shape, name, kept, checked)
            elif (finite := checked[np.isfinite(checked.astype(np.float64))]).size:
                metrics[f"batch/{shape.name}_{name}"] = float(finite.mean())
    return batch, metrics


def judged(batch: Batch, carried: Sequence[str] = ()) -> pa.Table:
    """Return the table `batch`: rows without a reward are left out; `carried` columns of the round stand behind."""
    batch = batch.leaving_out(nulls(batch.table.column("reward")), UNJUDGED)
    rows, known = BatchRows(batch.table), {*BATCH.names} & {*batch.table.column_names}
    number = ints(batch.table.column(GROUP)).tolist()
    columns = {name: one_array(batch.table.column(name)) for name in known}
    columns["group_id"] = pa.array([batch.made.get(each) or batch.groups[each] for each in number], pa.string())
    columns |= {name: _carried(rows, name) for name in carried if not name.startswith(OF_MARKS)}
    return cast_to_schema(pa.table(columns), BATCH)


def _carried(rows: BatchRows, name: str) -> pa.Array:
    """A column of the round as the batch keeps it; a list without numbers is of a row that was not measured: null."""
    if not isinstance(rows[name], Lists):
        return pa.array(rows[name], from_pandas=True)
    lists = one_array(rows.arrow(name))
    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), None, lists)


def _checked(name: str, values: Any, num: int) -> Any:
    """One value of a column for each of the rows that a shape saw; ShapeError for others."""
    if name in BatchRows.known and name not in SETTABLE:
        raise ShapeError(f"it sets {name!r}; it can set {', '.join(SETTABLE)}")
    if name == TERM:
        return np.array(_texts(name, values, num), dtype=np.object_)
    if name == CREDIT:
        return _lists(name, values, num)
    if name == MARKS:
        return _marks(values, num)
    found = np.asarray(values)
    found = np.broadcast_to(found, num) if found.ndim == 0 else found
    kinds = {TAKEN: "b", GROUP: "iu"}.get(name, "iufb")
    if found.shape != (num,) or found.dtype.kind not in kinds:
        wanted = {"b": "true or false", "iu": "a whole number", "iufb": "a number"}[kinds]
        raise ShapeError(f"its {name!r} is not {wanted} for each of {num} rows")
    if name == GROUP and (found < 0).any():
        raise ShapeError(f"its 'group' has the number {found.min()}; numbers begin at 0")
    return found


def _with(batch: Batch, shape: Shape, name: str, kept: Ints, values: np.ndarray[Any, Any]) -> Batch:
    """The batch with what a shape says of the rows that it saw; NaN is null."""
    num, there = batch.table.num_rows, name in batch.table.column_names
    if name in (TERM, CREDIT, MARKS):
        known = batch.table.column(name).to_pylist() if there else [None] * num
        for row, value in zip(kept.tolist(), values, strict=True):
            known[row] = [*(known[row] or []), *value] if name == MARKS else value
        return batch.setting(name, pa.array(known, BATCH.type_of(name)))
    if name == GROUP:
        number = ints(batch.table.column(name)).copy()
        number[kept] = values
        new = {int(each): f"{shape.name}:{each}" for each in np.unique(values[values >= len(batch.groups)])}
        return replace(batch, made={**batch.made, **new}).setting(name, pa.array(number))
    if (bad := np.isinf(values)).any():
        row = batch.table.column("rollout_id")[int(kept[np.argmax(bad)])]
        raise ShapeError(f"its {name!r} of rollout {row} is {values[np.argmax(bad)]}")
    numbers = floats(batch.table.column(name)).copy() if there else np.full(num, np.nan)
    numbers[kept] = values
    return batch.setting(name, pa.array(numbers, from_pandas=True))


def _texts(name: str, values: Any, num: int) -> list[Any]:
    """A text for each row."""
    found = [values] * num if isinstance(values, str) or values is None else list(np.asarray(values, np.object_))
    if len(found) != num or not all(each is None or isinstance(each, str) for each in found):
        raise ShapeError(f"its {name!r} is not a text for each of {num} rows")
    return found


def _lists(name: str, values: Any, num: int) -> list[Any]:
    """A list of finite numbers for each row, or None."""
    found = [None if each is None else np.asarray(each) for each in values]
    there = [each for each in found if each is not None]
    if len(found) != num or not all(
        each.ndim == 1 and each.dtype.kind in "iuf" and np.isfinite(each).all() for each in there
    ):
        raise ShapeError(f"its {name!r} is not a list of finite numbers for each of {num} rows")
    return found


def _marks(values: Any, num: int) -> list[list[dict[str, Any]]]:
    """The marks of each row, over tokens; an update checks them against its completion."""
    found = list(values)
    if len(found) != num:
        raise ShapeError(f"its 'marks' is not a list of marks, or None, for each of {num} rows")
    try:
        return [[mark._asdict() for mark in marks_of(each, MAX_TOKENS, "tokens")] for each in found]
    except MarkError as error:
        raise ShapeError(f"it returns {error}") from None


def _replaced(rows: pa.Table, group: Ints) -> Ints:
    """Numbers of the all-wrong groups that a later group of the same problem replaced."""
    if not len(group):
        return group
    levels, wrong = ints(rows.column("hint_level")), floats(rows.column("correct").cast(pa.int8())) == 0
    problem, _ = codes(rows.column("problem_id"))
    num_groups = int(group.max()) + 1
    failed = np.ones(num_groups, dtype=np.bool_)
    failed[group[~wrong]] = False
    level, owner = np.zeros(num_groups, dtype=np.int64), np.zeros(num_groups, dtype=np.int64)
    np.maximum.at(level, group, levels)  # a given row joins a hinted group without a hint
    owner[group] = problem
    last: dict[int, int] = {}
    for number in range(num_groups):
        before = last.setdefault(int(owner[number]), number)
        if level[number] >= level[before]:
            last[int(owner[number])] = number
    hinted = {int(owner[number]) for number in range(num_groups) if level[number] > 0}
    dropped = [n for n in range(num_groups) if failed[n] and owner[n] in hinted and last[int(owner[n])] != n]
    return np.array(dropped, dtype=np.int64)


def _joined(rows: pa.Table, group: Ints, dropped: Bools) -> tuple[Ints, Bools]:
    """The group of each row, (N,), and rows of other origins that have no group of the policy's to join.

    Without any row of the policy's own nothing has to be joined.
    """
    of_policy = bools(pc.equal(pc.coalesce(rows.column("origin"), OWN), OWN))
    unjudged = nulls(rows.column("reward"))
    own = of_policy & ~dropped & (~unjudged | unjudged[of_policy].all())
    waiting = ~of_policy & nulls(rows.column("group_id"))
    if not waiting.any() or not own.any():
        return group, np.zeros(len(group), dtype=np.bool_)
    target = last_groups(codes(rows.column("problem_id"))[0], group, ints(rows.column("hint_level")), own)
    alone = waiting & (target < 0)
    return np.where(waiting & ~alone, target, group), alone


def last_groups(problem: Ints, group: Ints, level: Ints, own: Bools) -> Ints:
    """Return the group that rows of another origin join, by the number of each row's problem, (N,); -1 for none.

    It is that of the `own` rows of the highest hint level, the later one of two.
    """
    order = np.lexsort((group, level))
    target = np.full(int(problem.max(initial=-1)) + 1, -1, dtype=np.int64)
    for row in order[own[order]]:
        target[problem[row]] = group[row]
    return target[problem]
