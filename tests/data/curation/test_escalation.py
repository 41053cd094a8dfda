"""GHPO as a whole by hand: a group that fails is asked again with 25, 50, 75 % of its solution until one is right."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.data.curation.batch import first_batch
from gradus.data.curation.round import round_of
from gradus.data.curation.waves.hinted import escalate
from gradus.data.hints import hints_of
from gradus.data.hints.strategies.prefix import prefix
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.rows import Rows

SOLUTION = "1+1=2\n2+1=3\n3+1=4\n4+5=9"
NEEDS = {"bare": 0, "half": 2, "never": 9}
"""The level from which on one of two answers to each problem is right."""


def rows_of(problem: str, level: int, text: str | None, call: int) -> list[dict[str, Any]]:
    group = f"{problem}@{level}"
    right = [False, level >= NEEDS[problem]]
    return [
        {
            "rollout_id": f"{group}:{at}",
            "problem_id": problem,
            "group_id": group,
            "hint_level": level,
            "hint_text": text,
            "wave": int(level > 0),
            "call": call,
            "origin": "own",
            "reward": float(correct),
            "correct": correct,
        }
        for at, correct in enumerate(right)
    ]


def test_a_group_is_asked_with_more_and_more_of_its_solution_and_the_last_one_is_learned() -> None:
    problems: Any = [{"problem_id": name, "question": "?", "answer": "9", "solution": SOLUTION} for name in NEEDS]
    hints = pa.Table.from_pylist(
        [vars(each) for problem in problems for each in hints_of(problem, prefix, (0.25, 0.5, 0.75))[0]]
    )
    rows, asked = [row for name in NEEDS for row in rows_of(name, 0, None, 0)], list[tuple[str, int, str]]()
    for call in range(4):
        table = pa.Table.from_pylist(rows)
        group, _ = np.unique(table.column("group_id").to_pylist(), return_inverse=True)[::-1]
        seen = table.append_column("group", pa.array(group)).set_column(
            9, "correct", table.column("correct").cast(pa.float64())
        )
        plan = escalate(round_of(seen, hints=hints, calls=call), np.random.default_rng(0))
        if plan is not None:
            planned = zip(plan.problem_id, plan.columns["hint_level"], plan.columns["hint_text"], strict=True)
            new = [(name.as_py(), level.as_py(), text.as_py()) for name, level, text in planned]
            asked += new
            rows += [row for name, level, text in new for row in rows_of(name, level, text, call)]
    steps = [f"{step}\n" for step in SOLUTION.split("\n")]
    shown = {level: "".join(steps[:level]) for level in (1, 2, 3)}
    assert asked == [
        ("half", 1, shown[1]),
        ("never", 1, shown[1]),
        ("half", 2, shown[2]),
        ("never", 2, shown[2]),
        ("never", 3, shown[3]),
    ]
    batch = first_batch(pa.Table.from_pylist(rows))
    learned = batch.table.filter(batch.table.column("taken"))
    assert learned.column("rollout_id").to_pylist() == [
        *("bare@0:0", "bare@0:1", "half@2:0", "half@2:1", "never@3:0", "never@3:1")
    ]
    reward, group = (torch.tensor(learned.column(name).to_pylist()) for name in ("reward", "group"))
    found = grpo(Rows({"reward": reward, "group": group}, {}, torch.ones(6, dtype=torch.int64)), std_eps=1e-4)
    unit = 0.5 / (np.sqrt(0.5) + 1e-4)  # rewards 0 and 1
    assert found.tolist() == pytest.approx([-unit, unit, -unit, unit, 0.0, 0.0], rel=1e-6)


def test_a_group_that_had_a_hint_from_the_start_goes_on_behind_its_level() -> None:
    problems: Any = [{"problem_id": name, "question": "?", "answer": "9", "solution": SOLUTION} for name in NEEDS]
    hints = pa.Table.from_pylist(
        [vars(each) for problem in problems for each in hints_of(problem, prefix, (0.25, 0.5, 0.75))[0]]
    )
    levels = {"bare": 0, "half": 1, "never": 3}  # the level shown in the first plan
    rows = [{**row, "correct": 0.0, "wave": 0} for name, level in levels.items() for row in rows_of(name, level, "", 0)]
    table = pa.Table.from_pylist(rows).append_column("group", pa.array([0, 0, 1, 1, 2, 2]))
    plan = escalate(round_of(table, hints=hints), np.random.default_rng(0))
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["bare", "half"]  # of never no level is left
    assert plan.columns["hint_level"].to_pylist() == [1, 2]
    assert plan.columns["hint_text"].to_pylist() == ["1+1=2\n", "1+1=2\n2+1=3\n"]
    assert plan.columns["reason"].to_pylist()[1] == "all 2 wrong at hint level 1, shown hint level 2"
    skip = escalate(round_of(table, hints=hints), np.random.default_rng(0), levels=(2, 3))
    assert skip is not None
    assert skip.columns["hint_level"].to_pylist() == [2, 2]
