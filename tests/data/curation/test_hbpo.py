"""HBPO by hand: the subgroups that the wave plans, the reward by the budget, the two parts of the advantage."""

import math
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.components.rows import Rows
from gradus.data.curation.batch import Shape, first_batch, judged, shaped
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.lengths import hbpo as shape
from gradus.data.curation.waves.allocation import budgets
from gradus.models.objectives.advantages.sets import hbpo as advantage
from gradus.models.objectives.rows import Rows as StepRows

NAN = math.nan


def test_each_problem_is_sampled_with_every_budget_in_its_prompt() -> None:
    # Two rows of a, of b one own row and a given one, c of a wave before: a and b are asked again, with 5 and 9 tokens.
    rows = pa.table(
        {
            "problem_id": ["a", "a", "b", "b", "c"],
            "group": [0, 0, 1, 1, 2],
            "origin": [None, "own", None, "expert", None],
            "wave": pa.array([0, 0, 0, 0, 1], pa.int32()),
            "problem.question": ["a?", "a?", None, None, "c?"],
            "problem.messages": [None, None, *[[{"role": "user", "content": "b?"}]] * 2, None],
        }
    )
    plan = budgets(round_of(rows), np.random.default_rng(0), tokens=(9, 5, 9), n=3, template="{budget}: {question}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert plan.problem_id.to_pylist() == ["a", "a", "b", "b"]
    assert (found["group"], found["budget"], found["n"]) == (["0", "0", "1", "1"], [5, 9, 5, 9], [3] * 4)
    assert [each[0]["content"] for each in found["messages"]] == ["5: a?", "9: a?", "5: b?", "9: b?"]
    assert "trained_prompt" not in found
    assert found["reason"][0] == "a budget of 5 tokens"
    usual = budgets(round_of(rows), np.random.default_rng(0))
    assert usual is not None
    assert usual.columns["messages"].to_pylist()[3][0]["content"] == "a?\n\nAnswer the question within 2560 tokens."


def test_a_right_answer_is_rewarded_by_its_budget_and_by_its_length_beyond_it() -> None:
    # Limit 12, scale 2: cos(pi/6) of 4 tokens is sqrt(3)/2, cos(pi/4) of 6 sqrt(1/2), cos(pi/3) of 8 a half, 12 have 0.
    rows = Rows(
        {
            "length": np.array([1, 4, 6, 8, 12, 13, 4, 8, 4, 4]),
            "plan.budget": np.array([4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 8.0, 8.0, NAN]),
            "correct": np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, NAN, 1.0]),
        }
    )
    found = shape(rows, limit=12, scale=2.0, alpha=0.1)
    within, at_6 = math.sqrt(3), math.sqrt(2) - 0.1 * 2
    expected = [within, within, at_6, 1.0 - 0.1 * 4, -0.1 * 8, 0.0, 0.0, 1.0, NAN, NAN]
    assert found["reward"].tolist() == pytest.approx(expected, nan_ok=True)
    assert found["taken"].tolist() == [True] * 9 + [False]
    assert found["met_frac"][:9].tolist() == [1, 1, 0, 0, 0, 0, 1, 1, 1]


def test_rows_without_a_budget_are_not_in_the_batch() -> None:
    table = pa.table(
        {
            "rollout_id": ["x", "y"],
            "problem_id": ["a", "a"],
            "group_id": ["a", "a"],
            "hint_level": pa.array([0, 0], pa.int32()),
            "origin": pa.nulls(2, pa.string()),
            "correct": [True, True],
            "reward": [1.0, 1.0],
            "length": [3, 3],
            "plan.budget": pa.array([None, 3], pa.int64()),
        }
    )
    batch, metrics = shaped(first_batch(table), [Shape("hbpo", partial(shape, limit=6, scale=2.0))])
    found = judged(batch).to_pylist()
    assert [(row["taken"], row["reason"]) for row in found] == [(False, "its prompt states no budget"), (True, None)]
    assert found[1]["reward"] == pytest.approx(math.sqrt(2))
    assert metrics["batch/hbpo_met_frac"] == 1.0


def test_the_advantage_is_that_of_the_budget_and_that_within_the_group() -> None:
    # Limit 6, scale 4: the budget 2 has 4 cos(pi/6) = 2 sqrt(3), the budget 4 has 4 cos(pi/3) = 2.
    # Group 0: 3, 1 of the budget 2 and 2, 2 of 4: mean 2, std sqrt(2/3). Group 1: one row, 1 of the budget 4.
    rows = StepRows(
        {
            "reward": torch.tensor([3.0, 1.0, 2.0, 2.0, NAN, 1.0], dtype=torch.float64),
            "group": torch.tensor([0, 0, 0, 0, 0, 1]),
            "plan.budget": torch.tensor([2.0, 2.0, 4.0, 4.0, 4.0, 4.0]),
        }
    )
    short, std = 2 - 2 * math.sqrt(3), math.sqrt(2 / 3)
    found = advantage(rows, limit=6, scale=4.0, std_eps=0.0).tolist()
    assert found == pytest.approx([short + 1 / std, short - 1 / std, 0.0, 0.0, 0.0, -1.0])
    unknown = rows.adding({"plan.budget": torch.tensor([NAN, 2.0, 4.0, 4.0, 4.0, 4.0])})
    assert advantage(unknown, limit=6, std_eps=0.0).tolist()[:2] == pytest.approx([0.0, 1 - 2 * math.sqrt(3) - 1 / std])
