"""Methods whose reward needs problems of a kind: each is laid over a bundled task (`gradus train tasks --task`)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.e2e.conftest import Program
from tests.e2e.methods.made import Made, Row
from tests.e2e.methods.objectives import Check
from tests.e2e.methods.shaping import ROUNDS

Judge = Callable[[Row, str], float]
"""Reward of a completion, by its problem with what is in `extra`."""


@dataclass(frozen=True)
class OnTask:
    """A method on the problems of a kind, whose rewards an independent implementation counts again."""

    task: str
    judge: Judge
    sets: tuple[str, ...] = ()
    """What the method needs on these problems."""
    column: str = "reward"
    """`reward` as scored, `shaped` as learned from."""
    more: Check | None = None

    def __call__(self, program: Program, run: str) -> None:
        """Raise AssertionError if a reward differs, or if all of them are the same."""
        made = Made(program, run)
        rows = [row for round in ROUNDS for row in made.learned(round)]
        found = [row[self.column] for row in rows]
        problems = {row["problem_id"]: row for row in made.given("curate", "problems", 1)}
        again = [self.judge(with_extra(problems[row["problem_id"]]), row["completion"]) for row in rows]
        differ = [
            (row["completion"], one, other)
            for row, one, other in zip(rows, found, again, strict=True)
            if one is None or abs(one - other) > 1e-6
        ]
        assert not differ, differ[:3]
        assert len({round(each, 6) for each in again}) > 1
        if self.more is not None:
            self.more(program, run)


def with_extra(problem: Row) -> Row:
    """A problem with what is in its `extra`."""
    return {**problem, **json.loads(problem["extra"] or "{}")}


def parts_of_record(problem: Row, said: str) -> float:
    """RL-Struct: the mean of keys, form, validity and values."""
    wanted = problem["record"]
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return 0.0
    keys = sum(key in found for key in wanted) / len(wanted)
    return (keys + 1.0 + 1.0 + sum(found.get(key) == value for key, value in wanted.items()) / len(wanted)) / 4


TASK_METHODS: Mapping[str, Check] = {"rl_struct": OnTask("records", parts_of_record)}
