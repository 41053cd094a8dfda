"""A round as a wave is shown it: the rows that came back, the problems, and the means to plan more.

    @component("wave", needs=("group", "correct"))
    def again(round: Round, rng):
        '''Sample every group of which no row is correct once more.'''
        right = round.rows.by("group").sum(round.rows["correct"])
        return round.plan(like=first_rows(round.rows, right == 0))

Rows are the rollouts of the waves before that are learned from, with the columns of rollouts and scores by name,
`problem.NAME`, `plan.NAME` and `parts.NAME`; `group` numbers the groups. A plan row may continue a rollout (`parent`)
or take one up again (`recall`): of this round by its number, of an earlier one by its id in `round.stored()`. Rows of
another use say something of them:

    said = round.rows.others("judge")         # needs=("judge: about", "judge: reward")
    said["reward"][said["about"][:, 0] == 3]  # what was said of row 3
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from gradus.components.rows import ColumnError, Lists, Rows
from gradus.data.arrays import Bools, Column, Ints, bools, ints, one_array, pc, positions, ragged, take_or_null
from gradus.data.curation.by_use import of_use
from gradus.data.curation.candidates import Candidates, candidates
from gradus.data.curation.continued import OF_PARENT, StoredError, known_rollouts, places_of
from gradus.data.curation.plan import hints_of_level, shown_above
from gradus.data.curation.uses import LEARN, NAME, POLICY, split_need
from gradus.data.errors import shortened
from gradus.data.lake.schema import LENGTH, OF_MARKS, OF_PARTS, OF_PLAN, OF_PROBLEM, OWN, PLACES, PLAN, ROLLOUTS, SCORES
from gradus.data.table_rows import TableRows

GROUP = "group"
ABOUT, MESSAGES, GIVEN = "about", "messages", "given"
_PAIR = 2
"""Width of `about` without rows, so that a first and a second can be read of none, too."""
_SAMPLED = ("n", "temperature", "top_p", "top_k", "max_tokens")
PLANNED = (
    *_SAMPLED,
    *(MESSAGES, GIVEN, "source", "hint_level", "hint_text", "reason", "role", "use", "origin", "trained_prompt"),
    "own_gold",
    *OF_PARENT,
)
"""Columns of a plan that a wave may set as they are."""


class RoundRows(TableRows):
    """Rollouts that are learned from, with scores, plan rows and problems, and beside them those of other uses."""

    extra: ClassVar[str] = "problem.extra"
    known: ClassVar[Collection[str]] = (
        GROUP,
        "age",
        LENGTH,
        *PLACES,
        *dict.fromkeys(column.name for table in (ROLLOUTS, SCORES) for column in table.columns),
        extra,
    )

    def __init__(
        self,
        table: pa.Table,
        pool: "tuple[TableRows, Ints] | None" = None,
        beside: pa.Table | None = None,
        of: "RoundRows | None" = None,
    ) -> None:
        super().__init__(table, pool)
        self.beside = beside
        """The rows of other uses."""
        self._of = of
        """The rows that these say something of; None for themselves."""

    def over(self, table: pa.Table) -> Self:
        """Return the rows with the columns of another table of them."""
        return type(self)(table, beside=self.beside, of=self._of)

    def others(self, use: str) -> Self:
        """Return the rows of another use; `about` are numbers of these rows, -1 for one that is not among them.

        That is (K, k) int64 if each of the K rows is about as many, (0, 2) without rows, else Lists.
        """
        named = None if self._needs is None else [split_need(need) for need in self._needs]
        if named is not None and use not in [of for of, _ in named]:
            raise ColumnError(
                f'{self._reader} reads rows of use {use!r} without declaring it: add "{use}: COLUMN" to its `needs`'
            )
        table = self.table.slice(0, 0) if self.beside is None else of_use(self.beside, use)
        found = type(self)(table, of=self)
        return found.reading(None if named is None else [name for of, name in named if of == use], self._reader)

    def _column(self, name: str) -> Any:
        if name == ABOUT and name not in self._of_rows:
            offsets, ids = ragged(PLAN.column(self.table, ABOUT))
            places, sizes = positions(ids, self._named().column("rollout_id")), np.diff(offsets)
            size = int(sizes[0]) if len(sizes) else _PAIR
            even = bool((sizes == size).all())
            self._of_rows[name] = places.reshape(len(sizes), size) if even else Lists(places, offsets)
        return super()._column(name)

    def _named(self) -> pa.Table:
        """The rows that `about` numbers: those that these say something of; for a trained role's, the policy's."""
        if self._of is not None:
            return self._of.table
        of_policy = None if self.beside is None else of_use(self.beside, POLICY)
        return self.table if of_policy is None or not of_policy.num_rows else of_policy

    def __contains__(self, name: str) -> bool:
        """Return whether a column is there."""
        return name == ABOUT or super().__contains__(name)

    def _is_known(self, name: str) -> bool:
        return super()._is_known(name) or name.startswith((OF_PLAN, OF_PROBLEM, OF_PARTS, OF_MARKS))


class WaveError(ValueError):
    """Rows that cannot be planned."""


@dataclass(frozen=True)
class Planned:
    """Plan rows that a wave asks for: a problem each, columns (P,) by name, and rows left out by reason."""

    problem_id: pa.Array
    columns: Mapping[str, pa.Array]
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def num_rows(self) -> int:
        """P."""
        return len(self.problem_id)


@dataclass(frozen=True)
class Round:
    """One call of a wave."""

    rows: RoundRows
    """(N,) rollouts of the waves before, and of this one's calls before, that are learned from."""
    candidates: Candidates
    """Every problem, with its measurements as of the round before."""
    index: int
    """Number of the round, from 1."""
    wave: int
    """Number of the wave, from 1; 0 is curate."""
    calls: int
    """Number of calls of this wave before this one."""
    groups: pa.Array
    """(G,): the name of each group by its number."""
    hints: pa.Table | None
    drawn: Callable[[Candidates, int], Ints]
    """Draw some of the candidates as the recipe draws the problems of a round."""
    earlier: RoundRows | None = None
    """Rollouts of earlier rounds."""
    traces: pa.Table | None = None
    """(T,): trace_id, problem_id, text and source of the wave's file (`traces`), those of the problems that the round
    has, and what measures found of them, NAME.COLUMN."""

    @property
    def is_first(self) -> Bools:
        """Return which rows are of wave 0, the round's first plan, (N,)."""
        return ints(self.rows.table.column("wave")) == 0

    @property
    def newest(self) -> Bools:
        """Return which rows the last call planned, (N,): of this wave, or before its first call of any before."""
        if not self.calls:
            return np.ones(self.rows.num_rows, dtype=np.bool_)
        wave, call = (ints(self.rows.table.column(name)) for name in ("wave", "call"))
        return (wave == self.wave) & (call == self.calls - 1)

    def draw(self, num: int) -> Ints:
        """Return the numbers of up to `num` candidates that no row of the round answers, drawn as the recipe draws."""
        planned = positions(self.candidates.table.column("problem_id"), self.rows.table.column("problem_id")) >= 0
        left = np.flatnonzero(~planned)
        return left[self.drawn(self.candidates.select(left), num)] if num > 0 and len(left) else left[:0]

    def hint(self, like: Ints, level: int, *, revealing: bool = False) -> tuple[pa.Array, Bools]:
        """Return the hint of a level for the problems of some rows (P,), null without one, and which are withheld.

        A hint that states the answer is withheld, unless the wave says that it may be `revealing`.
        """
        if self.hints is None:
            raise WaveError('it asks for hints without declaring it: add "hint" to its `needs`')
        return hints_of_level(self.hints, level, self.rows.table.column("problem_id").take(pa.array(like)), revealing)

    def stored(self, max_age: int | None = None) -> RoundRows:
        """Return judged rollouts of earlier rounds, (S,): ids and numbers, without texts or tokens.

        Their columns are rollout_id, problem_id, group (a number), round, hint_level, finish_reason, reward, correct
        and `age`, the number of updates since the policy that sampled them, at most `max_age` and the recipe's
        update.max_age.
        """
        if self.earlier is None:
            raise WaveError('it asks for stored rollouts without declaring it: add "stored" to its `needs`')
        age = ints(self.earlier.table.column("age"))
        return self.earlier if max_age is None else self.earlier.select(np.flatnonzero(age <= max_age))

    def plan(
        self,
        *,
        like: Ints | None = None,
        problems: Ints | None = None,
        parent: Any = None,
        recall: Any = None,
        skipped: Mapping[str, int] | None = None,
        **columns: Any,
    ) -> Planned:
        """Plan rows: each for the problem of a row (`like`), with its hint, or for a candidate (`problems`), (P,).

        Args:
            like: Numbers of rows; the rows that are continued or taken up again, if there are such.
            problems: Numbers of candidates.
            parent: The rollout that each row continues, by number in this round or by id (-1 or None: none), from the
                token `branch_at` on (below 0 from its end) and after the text `inserted`. It joins its parent's group
                if it `replaces` it; what it `inherits` is "context", or "trained".
            recall: The stored rollout that each row takes up again, named likewise. Those of one stored group form one.
            skipped: Number of rows or groups left out by reason, for people.
            columns: One value, or one for each plan row: those of `PLANNED`; `group`, the number of the group that the
                rollouts join (-1: one of their own); `together`, the same number in rows that form one new group;
                `about`, the numbers of the rows that they say something of, one or several each. Any other is stored
                with the plan, and read as `plan.NAME`. With `messages` (texts are those of the user), and with the text
                of a completion that is `given`, no hint is inherited. A given text needs an `origin`. Rows that are
                asked something else than their problem are judged by `own_gold`.
        """
        named = {name: value for name, value in (("parent", parent), ("recall", recall)) if value is not None}
        if problems is not None and like is None:
            places = _numbers("problems", problems, self.candidates.num_rows)
            problem_id = self.candidates.table.column("problem_id").take(pa.array(places))
        elif like is not None and problems is None:
            places = _numbers("like", like, self.rows.num_rows)
            problem_id = self.rows.table.column("problem_id").take(pa.array(places))
            shown = () if {MESSAGES, GIVEN} & {*columns} else ("hint_level", "hint_text")
            columns = {**{name: self.rows.table.column(name).take(pa.array(places)) for name in shown}, **columns}
        elif named and like is None:
            problem_id, columns = self._of_stored(named, columns)
        else:
            raise WaveError("it plans neither rows like others nor problems: give like= or problems=, not both")
        columns = {**({"n": 1} if GIVEN in columns else {}), **columns}
        found = {name: self._column(name, value, len(problem_id)) for name, value in columns.items()}
        found |= self._shown(problem_id, found)
        for name, value in named.items():
            found |= self._naming(name, value, found, len(problem_id))
        return Planned(one_array(problem_id), found, skipped or {})

    def _shown(self, problem_id: Column, found: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the sentence above each hint, if those of the round have one; of an inherited hint that of its row."""
        rows, own, hints = self.rows.table, OF_PLAN + "shown", self.hints
        known = [rows.select(["problem_id", "hint_level", own])] if own in rows.column_names else []
        if hints is not None and "shown" in hints.column_names:
            known.append(hints.select(["problem_id", "level", "shown"]))
        if not known or "hint_text" not in found:
            return {}
        shown = shown_above(known, problem_id, found["hint_level"], found["hint_text"])
        return {"shown": shown} if shown.null_count < len(shown) else {}

    def _known(self) -> pa.Table:
        return known_rollouts(self.rows.table, None if self.earlier is None else self.earlier.table)

    def _places(self, named: Any) -> Ints:
        try:
            return places_of(named, self._known(), self.rows.num_rows)
        except StoredError as error:
            raise WaveError(str(error)) from None

    def _of_stored(self, named: Mapping[str, Any], columns: Mapping[str, Any]) -> tuple[pa.Array, dict[str, Any]]:
        """Return the problem of the rollout that each row builds on, and the columns with that one's hint."""
        places, known = np.maximum.reduce([self._places(value) for value in named.values()]), self._known()
        if (places < 0).any():
            raise WaveError("it plans a row that builds on no rollout: give like= or problems= too")
        texts = take_or_null(self.rows.table.column("hint_text"), np.where(places < self.rows.num_rows, places, -1))
        level = take_or_null(known.column("hint_level"), places)
        return take_or_null(known.column("problem_id"), places), {"hint_level": level, "hint_text": texts, **columns}

    def _naming(self, name: str, value: Any, found: Mapping[str, pa.Array], num: int) -> dict[str, pa.Array]:
        """Return the column that names the rollouts, and groups and sizes of rows that say nothing else of them."""
        places, known = np.broadcast_to(self._places(value), num), self._known()
        more = {name: take_or_null(known.column("rollout_id"), places)}
        group = take_or_null(pc.coalesce(known.column("group_id"), known.column("problem_id")), places)
        none = pa.nulls(num, pa.string())
        if name == "recall":
            more |= {"n": pc.if_else(pa.array(places >= 0), 1, pa.nulls(num, pa.int32()))} if "n" not in found else {}
            more |= {"together": group} if not {"together", GROUP} & {*found} else {}
        elif GROUP not in found and "replaces" in found:
            there = bools(found["replaces"]) & (places >= 0) & (places < self.rows.num_rows)
            more[GROUP] = pc.if_else(pa.array(there), group, none)
        return more

    def _column(self, name: str, value: Any, num: int) -> pa.Array:
        if name == GROUP:
            numbers = np.broadcast_to(_whole(name, value), num)
            if len(odd := numbers[(numbers >= len(self.groups)) | (numbers < -1)]):
                raise WaveError(f"it plans for group {odd[0]}, and there are {len(self.groups)} groups")
            return self.groups.take(pa.array(numbers, mask=numbers < 0))
        if name == "together":
            numbers = np.broadcast_to(_whole(name, value), num)
            return pa.array(numbers, mask=numbers < 0)
        if name == ABOUT:
            return self._about(value, num)
        if name in ("role", "use"):
            return pa.array([_name(name, each) for each in _spread(name, _values(value, num), num)], pa.string())
        wanted = next((column.type for column in PLAN.columns if column.name == name), None)
        if wanted is not None and name not in PLANNED:
            raise WaveError(f"it sets {name!r}, which is decided for it")
        found = one_array(value) if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(_values(value, num))
        _spread(name, found, num)
        if name == MESSAGES and pa.types.is_string(found.type):
            found = pa.array([[{"role": "user", "content": text}] for text in found.to_pylist()])
        try:
            return found if wanted is None else found.cast(wanted)
        except pa.ArrowException:
            raise WaveError(f"its values of {name!r} are no {wanted}") from None

    def _about(self, value: Any, num: int) -> pa.Array:
        """Return the ids of the rows that each plan row names by their numbers."""
        given = _spread(ABOUT, _values(value, num), num)
        numbers = [_numbers(ABOUT, each, self.rows.num_rows) for each in given]
        ids = self.rows.table.column("rollout_id").take(pa.array(np.concatenate([*numbers, np.zeros(0, np.int64)])))
        offsets = np.cumsum([0, *map(len, numbers)])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), one_array(ids))


def _name(column: str, value: Any) -> str | None:
    """Return a role or a use as it is stored: null for the policy, and for rows that are learned from."""
    if value in (None, POLICY if column == "role" else LEARN):
        return None
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise WaveError(f"{value!r} is no {column}: names are of small letters, digits and _, such as judge")
    return value


def _spread(name: str, values: Any, num: int) -> Any:
    """Return values of a column; WaveError if there is not one for each row."""
    if len(values) != num:
        raise WaveError(f"it plans {num} rows and has {len(values)} values of {name!r}")
    return values


def _values(value: Any, num: int) -> Sequence[Any]:
    if isinstance(value, str) or (not isinstance(value, list | tuple) and np.ndim(value) == 0):
        return [value] * num
    return list(value)


def _numbers(name: str, places: Any, num_rows: int) -> Ints:
    found = _whole(name, places).reshape(-1)
    if len(odd := found[(found < 0) | (found >= num_rows)]):
        raise WaveError(f"it names row {odd[0]} of {num_rows}")
    return found


def round_of(rows: pa.Table, problems: pa.Table | None = None, **known: Any) -> Round:
    """Return a round with these rows, to try a wave on: of problems without measurements, drawn in their order.

    `known` may set `index`, `wave`, `calls`, `hints` and `earlier`. Columns that a plan needs and that are not given
    are null, and rollouts are called by their numbers.
    """
    if "rollout_id" not in rows.column_names:
        rows = rows.append_column("rollout_id", pa.array([str(each) for each in range(rows.num_rows)], pa.string()))
    for name, type_ in (
        ("group_id", pa.string()),
        ("hint_level", pa.int32()),
        ("hint_text", pa.string()),
        ("wave", pa.int32()),
        ("call", pa.int32()),
    ):
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, type_))
    asked = problems if problems is not None else pa.table({"problem_id": pa.array([], pa.string())})
    groups = pa.array([str(each) for each in range(int(max(rows["group"].to_pylist(), default=-1)) + 1)], pa.string())
    fields: dict[str, Any] = {"index": 1, "wave": 1, "calls": 0, "hints": None, **known}
    view = RoundRows(of_use(rows, LEARN), beside=rows)
    return Round(view, candidates(asked, None), groups=groups, drawn=_in_order, **fields)


def _in_order(pool: Candidates, num: int) -> Ints:
    return np.arange(min(num, pool.num_rows))


def first_rows(rows: Rows, chosen: Bools) -> Ints:
    """Return the number of the first row of each group of which a row is chosen, in order."""
    group = np.asarray(rows[GROUP])
    _, first = np.unique(group, return_index=True)
    return np.sort(first[np.isin(group[first], group[chosen])])


def own_rows(rows: Rows) -> Bools:
    """Return which rows the policy wrote itself, (N,): not those of a given text, or of a role."""
    return np.array([each in (None, OWN) for each in rows["origin"]], dtype=np.bool_)


def _whole(name: str, value: Any) -> Ints:
    """Return numbers of rows or groups; WaveError for anything else."""
    found = np.asarray(value)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise WaveError(f"its {name!r} are {shortened(repr(value))}, and rows and groups are named by their numbers")
    return found.astype(np.int64)
