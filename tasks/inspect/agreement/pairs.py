"""`gradus agree`: verdicts of several rewards on the same rollouts, in pairs, and the rounds in which they differ.

A row counts for a pair of rewards if both reached a verdict. A group has another advantage if (r - mean) / std of its
rows differs, which is 0 where all are equal: shapes of a recipe are not asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints, bools, codes, floats, ints, looked_up, pc
from gradus.data.curation.grading import summarise
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Figure
from gradus.tasks.formats import visible
from gradus.tasks.inspect.agreement.numbers import Change, change_of, counts_of, kappa_interval
from gradus.tasks.runs.history import is_learned

OWN = "own"
"""Name of the rewards by which the rollouts of a run were scored."""
MAX_FLIPS = 20
"""Rows on which a pair disagrees that an answer names."""
_TAIL_CHARS = 200
_TOLERANCE = 1e-9


class Cell(TypedDict):
    """Verdicts of a pair on the rows with one value of a column; kappa is null if both have one verdict alone."""

    by: str
    value: str
    rows: int
    both_right: int
    only_first: int
    only_second: int
    both_wrong: int
    agreement: float
    kappa: Figure | None


class RoundChange(TypedDict):
    """Rows of a round that are learned from: other verdicts, and groups whose advantages differ."""

    run: str
    round: int
    rows: int
    flips: int
    groups: int
    groups_changed: int


class Divergence(TypedDict):
    """The first round of a run whose update would differ, null if none does, and tokens sampled after it.

    `since` is the round from which they disagree on more rows that are learned from; null if there is none.
    """

    run: str
    round: int | None
    tokens: int
    since: Change | None


class Flip(TypedDict):
    """A row on which a pair disagrees: the end of its completion, and what each read from it."""

    rollout_id: str
    problem_id: str
    run: str
    round: int
    right: str
    completion: str
    first: str | None
    second: str | None


class Pair(TypedDict):
    """Two rewards."""

    first: str
    second: str
    num_unjudged: int
    cells: list[Cell]
    rounds: list[RoundChange]
    divergences: list[Divergence]
    flips: list[Flip]
    num_flips: int


class Agreement(TypedDict):
    """The answer of `gradus agree --json`."""

    run: str
    rewards: list[str]
    rollouts: int
    pairs: list[Pair]


@dataclass(frozen=True)
class Judged:
    """Rollouts of one artifact and their scores by each reward."""

    run: str
    """Name of the run, or of the artifact if none is named."""
    round: int
    purpose: str
    rollouts: Ref
    problems: Sequence[Ref]
    scores: Sequence[Ref]


@dataclass(frozen=True)
class _Scores:
    """Rewards and verdicts of all rows (N,)."""

    reward: Floats
    right: Bools
    known: Bools
    extracted: pa.Array


def agreement(store: Store, run: str, names: Sequence[str], judged: Sequence[Judged]) -> Agreement:
    """Return all pairs of rewards over all rows; BadInputError if a reward reaches no verdict at all."""
    refs = [each.rollouts for each in judged]
    rows = pa.concat_tables([_rows(store, each, again=each.rollouts in refs[:at]) for at, each in enumerate(judged)])
    scores = [_scores(store, judged, number) for number in range(len(names))]
    for name, found in zip(names, scores, strict=True):
        if not found.known.any():
            raise no_verdict(name, rows.num_rows)
    pairs = combinations(range(len(names)), 2)
    return {
        "run": run,
        "rewards": list(names),
        "rollouts": int((~bools(rows.column("again"))).sum()),
        "pairs": [_pair(rows, (names[a], names[b]), (scores[a], scores[b])) for a, b in pairs],
    }


def no_verdict(name: str, num_rows: int) -> BadInputError:
    """Return the error of a reward that says of no row whether it is right."""
    said = f"{name} reaches no verdict on these {num_rows} rollouts"
    return BadInputError(said, hint="a graded reward needs a threshold: --at 0.5")


def _rows(store: Store, judged: Judged, *, again: bool) -> pa.Table:
    """Return the columns compared of an artifact; rows that an earlier run has too are `again`: once in the sums."""
    found = store.read(judged.rollouts, ("rollout_id", "problem_id", "group_id", "completion_tokens", "completion"))
    length = pc.coalesce(pc.list_value_length(found.column("completion_tokens")), pa.scalar(0, pa.int32()))
    problems = pa.concat_tables([store.read(ref, ("problem_id", "domain", "source")) for ref in judged.problems])
    found = looked_up(found, "problem_id", problems, ("domain", "source")).drop_columns(["completion_tokens"])
    same = {"run": judged.run, "round": judged.round, "purpose": judged.purpose, "again": again}
    columns = {name: pa.repeat(value, found.num_rows) for name, value in same.items()}
    for name, column in {"tokens": length.cast(pa.int64()), **columns}.items():
        found = found.append_column(name, column)
    return found


def _scores(store: Store, judged: Sequence[Judged], number: int) -> _Scores:
    parts, columns = list[pa.Table](), ("reward", "correct", "extracted")
    for each in judged:
        scores = store.read(each.scores[number], ("rollout_id", *columns))
        parts.append(looked_up(store.read(each.rollouts, ("rollout_id",)), "rollout_id", scores, columns))
    table = pa.concat_tables(parts)
    correct = floats(table.column("correct"))
    extracted = table.column("extracted").combine_chunks()
    return _Scores(floats(table.column("reward")), correct == 1, ~np.isnan(correct), extracted)


def _pair(rows: pa.Table, names: tuple[str, str], scores: tuple[_Scores, _Scores]) -> Pair:
    first, second = scores
    once = ~bools(rows.column("again"))
    known = first.known & second.known & once
    flipped = np.flatnonzero(known & (first.right != second.right))
    rounds = list(_changes(rows, first, second))
    shown = flipped[np.unique(np.linspace(0, len(flipped) - 1, min(MAX_FLIPS, len(flipped))).round().astype(int))]
    return {
        "first": names[0],
        "second": names[1],
        "num_unjudged": int((once & ~known).sum()),
        "cells": list(_cells(rows, first, second, np.flatnonzero(known))),
        "rounds": rounds,
        "divergences": _divergences(rows, rounds, first, second),
        "flips": [_flip(rows, int(at), names, scores) for at in shown],
        "num_flips": len(flipped),
    }


def _cells(rows: pa.Table, first: _Scores, second: _Scores, known: Ints) -> Iterator[Cell]:
    """Yield the cell of all rows, then those of each column that has several values."""
    cluster = codes(rows.column("problem_id"))[0][known]
    one, other = first.right[known], second.right[known]
    yield _cell("all", "", one, other, cluster)
    columns = {name: rows.column(name) for name in ("run", "round", "purpose", "domain", "source")}
    for name, column in {**columns, "tokens": _quarters(rows.column("tokens").to_numpy())}.items():
        values = pa.array(column.to_pylist()).take(pa.array(known)).dictionary_encode()
        code, texts = values.indices.fill_null(-1).to_numpy(), values.dictionary.to_pylist()
        for number in sorted(range(len(texts)), key=texts.__getitem__) if len(texts) > 1 else ():
            at = np.flatnonzero(code == number)
            yield _cell(name, str(texts[number]), one[at], other[at], cluster[at])


def _cell(by: str, value: str, first: Bools, second: Bools, cluster: Ints) -> Cell:
    both, only_first, only_second, neither = counts_of(first, second).tolist()
    return {
        "by": by,
        "value": value,
        "rows": len(first),
        "both_right": both,
        "only_first": only_first,
        "only_second": only_second,
        "both_wrong": neither,
        "agreement": 1 - (only_first + only_second) / len(first),
        "kappa": kappa_interval(first, second, _numbered(cluster)),
    }


def _numbered(names: Ints) -> Ints:
    """Return numbers 0..G-1 for equal numbers, (N,)."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _quarters(tokens: Ints) -> pa.Array:
    """Return the range of lengths that each row falls in (N,): quarters of all rows."""
    edges = np.unique(np.quantile(tokens, [0.25, 0.5, 0.75], method="inverted_cdf")) if len(tokens) else tokens
    bounds = [0, *(int(edge) + 1 for edge in edges), int(tokens.max(initial=0)) + 1]
    place = np.searchsorted(edges, tokens)
    width = len(str(bounds[-1]))
    names = pa.array([f"{low:>{width}} to {high - 1:>{width}}" for low, high in pairwise(bounds)], pa.string())
    return names.take(pa.array(place))


def _learned(rows: pa.Table) -> dict[tuple[str, int], Ints]:
    """Return the places of the rows that are learned from, by run and round, in order."""
    places: dict[tuple[str, int], list[int]] = {}
    for at, row in enumerate(rows.select(["run", "round", "purpose"]).to_pylist()):
        if row["round"] and is_learned(row["purpose"]):
            places.setdefault((row["run"], row["round"]), []).append(at)
    return {key: np.array(found) for key, found in sorted(places.items())}


def _groups(rows: pa.Table) -> Ints:
    """Return the number of each row's group within its round, (N,)."""
    names = codes(pc.coalesce(rows.column("group_id"), rows.column("problem_id")))[0]
    round_ = ints(rows.column("round"))
    return names * (int(round_.max(initial=0)) + 1) + round_


def _changes(rows: pa.Table, first: _Scores, second: _Scores) -> Iterator[RoundChange]:
    names = _groups(rows)
    for (run, round_), at in _learned(rows).items():
        group = _numbered(names[at])
        changed = np.abs(_standardised(first.reward[at], group) - _standardised(second.reward[at], group))
        touched = np.unique(group[~(changed <= _TOLERANCE)])
        flips = (first.right[at] != second.right[at]) & first.known[at] & second.known[at]
        yield {
            "run": run,
            "round": round_,
            "rows": len(at),
            "flips": int(flips.sum()),
            "groups": int(group.max()) + 1,
            "groups_changed": len(touched),
        }


def _standardised(reward: Floats, group: Ints) -> Floats:
    """Return (r - mean) / std within each group 0..G-1 (N,), 0 where all are equal and for a row without a reward."""
    found = summarise(reward, group, num_groups=int(group.max()) + 1)
    std = np.sqrt(found.variance)[group]
    return np.divide(reward - found.mean[group], std, out=np.zeros(len(reward)), where=~np.isnan(reward) & (std > 0))


def _divergences(rows: pa.Table, rounds: Sequence[RoundChange], first: _Scores, second: _Scores) -> list[Divergence]:
    tokens, of_round = rows.column("tokens").to_numpy(), rows.column("round").to_numpy()
    runs, names, learned = np.array(rows.column("run").to_pylist()), _groups(rows), _learned(rows)
    judged = first.known & second.known
    found = list[Divergence]()
    for run in dict.fromkeys(each["run"] for each in rounds):
        begin = next((each["round"] for each in rounds if each["run"] == run and each["groups_changed"]), None)
        after = (runs == run) & (of_round > (begin or 0)) & (begin is not None)
        at = np.concatenate([places for (name, _), places in learned.items() if name == run])
        at = at[judged[at]]
        group, place, number = np.unique(names[at], return_index=True, return_inverse=True)
        differing = np.bincount(number, first.right[at] != second.right[at], len(group)) / np.bincount(number)
        since = change_of(differing, of_round[at][place]) if len(at) else None
        found.append({"run": run, "round": begin, "tokens": int(tokens[after].sum()), "since": since})
    return found


def _flip(rows: pa.Table, at: int, names: tuple[str, str], scores: tuple[_Scores, _Scores]) -> Flip:
    row: Mapping[str, Any] = rows.slice(at, 1).to_pylist()[0]
    first, second = (each.extracted[at].as_py() for each in scores)
    return {
        "rollout_id": row["rollout_id"],
        "problem_id": row["problem_id"],
        "run": row["run"],
        "round": row["round"],
        "right": names[0] if scores[0].right[at] else names[1],
        "completion": (row["completion"] or "")[-_TAIL_CHARS:],
        "first": None if first is None else visible(first),
        "second": None if second is None else visible(second),
    }
