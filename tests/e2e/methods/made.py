"""What a run made in each of its rounds, from its journal and the files of the lake."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from tests.e2e.conftest import Program

Row = dict[str, Any]
LEARNED = (None, "learn")
"""Values of `use` of rows that the policy learns from."""


class Made:
    """Tables of a run, by stage and round; those of its evaluations and of its profile apart."""

    def __init__(self, program: Program, run: str) -> None:
        self.program, self.run, named = program, run, ("stage_started", "stage_reused")
        self.events = [each for each in program.events(run) if each["event"] in named]

    def of(self, stage: str, round: int | None = None, *purposes: str) -> list[Row]:
        """The starts of a stage."""
        apart = () if purposes else ("eval", "profile")
        return [
            each
            for each in self.events
            if each["stage"] == stage
            and round in (None, each["round"])
            and (each["purpose"] in purposes if purposes else not each["purpose"].startswith(apart))
        ]

    def table(self, stage: str, round: int | None = None, *purposes: str) -> list[Row]:
        """The rows that a stage made."""
        return [row for each in self.of(stage, round, *purposes) for row in self.program.rows(each["output"])]

    def given(self, stage: str, name: str, round: int) -> list[Row]:
        """The rows of an input of a stage."""
        return [row for ref in self.of(stage, round)[0]["inputs"][name] for row in self.program.rows(ref)]

    @property
    def problems(self) -> dict[str, Row]:
        """The problems that are trained on, by id."""
        return {row["problem_id"]: row for row in self.table("ingest")}

    def plan(self, round: int) -> list[Row]:
        """The rows of the plans of a round, those of its waves too."""
        return [*self.table("curate", round), *self.table("wave", round)]

    def planned(self, round: int) -> list[Row]:
        """The problems of the first plan of a round, with what was known of each."""
        known = {row["problem_id"]: row for row in self.given("curate", "difficulty", round)}
        return [
            {**self.problems[row["problem_id"]], **known.get(row["problem_id"], {})}
            for row in self.table("curate", round)
        ]

    @cache  # noqa: B019 - a check makes one and is done
    def sampled(self, round: int) -> list[Row]:
        """The rollouts of a round with their scores, and of its batch `shaped` (the reward) and `taken`."""
        scores = {row["rollout_id"]: row for row in self.table("score", round)}
        batch = {row["rollout_id"]: row for row in self.table("shape", round)}
        found = list[Row]()
        for row in self.table("rollout", round):
            own, score = batch.get(row["rollout_id"], {}), scores.get(row["rollout_id"], {})
            of_batch = {"shaped": own.get("reward"), "taken": own.get("taken"), "in_group": own.get("group_id")}
            found.append({**blank(), **row, **score, **of_batch})
        return found

    def learned(self, round: int) -> list[Row]:
        """Those that the policy may learn from."""
        return [row for row in self.sampled(round) if row["use"] in LEARNED and row["role"] is None]

    def about(self, round: int, use: str) -> list[Row]:
        """Those that say something of others."""
        return [row for row in self.sampled(round) if row["use"] == use]

    def groups(self, round: int) -> list[list[Row]]:
        """The policy's rows by group."""
        return by(self.learned(round), "group_id")

    def standing(self, round: int) -> list[list[Row]]:
        """The same without groups in whose place a hinted one is learned from."""
        hinted = {row["problem_id"] for row in self.learned(round) if row["hint_level"]}
        return [rows for rows in self.groups(round) if rows[0]["hint_level"] or rows[0]["problem_id"] not in hinted]

    def first(self, round: int) -> list[list[Row]]:
        """The groups of the first plan of a round, without what waves added."""
        return by([row for row in self.learned(round) if not row["wave"] and own(row)], "group_id")


def blank() -> Row:
    """A row without what waves alone fill in."""
    names = ("use", "role", "about", "wave", "call", "parent", "recall", "messages", "extracted", "reward", "correct")
    return dict.fromkeys(names)


def answer(row: Row) -> Fraction | str | None:
    """What was read from it, a number by its value."""
    try:
        return None if row["extracted"] is None else Fraction(row["extracted"])
    except ValueError:
        return row["extracted"]


def own(row: Row) -> bool:
    """Return whether the policy wrote it."""
    return row["origin"] in (None, "own")


def by(rows: Iterable[Row], *names: str) -> list[list[Row]]:
    """Rows by the values of columns."""
    found = defaultdict[Any, list[Row]](list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return list(found.values())


def failed(rows: Sequence[Row]) -> bool:
    """Return whether every row is wrong."""
    return all(row["correct"] is False for row in rows)


def rate(rows: Sequence[Row]) -> float:
    """The share that is right."""
    return float(np.mean([bool(row["correct"]) for row in rows]))


def same(found: Iterable[float], expected: Iterable[float]) -> None:
    """Assert that numbers agree, and that there are some."""
    one, other = (np.array(list(each), dtype=np.float64) for each in (found, expected))
    assert len(one)
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
