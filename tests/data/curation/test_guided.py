"""Guide-GRPO, ExPO, ICPO and XRPO by hand: groups that are guided, and the ratio of what was sampled with a hint."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.data.curation.batch import first_batch
from gradus.data.curation.round import round_of
from gradus.data.curation.waves.guided import examples, explain, guide, neighbours
from gradus.data.hints import hints_of
from gradus.data.hints.strategies.gold import gold
from gradus.models.objectives.losses.clipped import behaviour_clip
from gradus.models.objectives.rows import Rows
from tests.data.curation.tallies import measured as measured_of


def test_groups_that_failed_whole_are_guided_and_the_new_rows_join_them() -> None:
    # a failed; b was solved once; of c one row was not judged; d failed without a hint; the hint of e says too much.
    rows = pa.table(
        {
            "problem_id": list("aabbccddee"),
            "group": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
            "correct": [0.0, 0.0, 0.0, 1.0, 0.0, None, 0.0, 0.0, 0.0, 0.0],
            "problem.question": [f"{name}?" for name in "aabbccddee"],
            "problem.messages": pa.nulls(10),
        }
    )
    hints = pa.table(
        {
            "problem_id": [*"abce", "a"],
            "level": [1, 1, 1, 1, 2],
            "text": ["first", "x", "x", "it is 5", "second"],
            "leaks_answer": [False, False, False, True, False],
        }
    )
    plan = guide(round_of(rows, hints=hints), np.random.default_rng(0), template="{question} {hint}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert (plan.problem_id.to_pylist(), found["group"]) == (["a"], ["0"])
    assert found["messages"] == [[{"role": "user", "content": "a? first"}]]
    assert (found["trained_prompt"], found["origin"], "n" in found) == (["problem"], ["guided"], False)
    assert {reason: count for reason, count in plan.skipped.items() if count} == {
        "no hint of level 1": 1,
        "the hint states the answer": 1,
    }


def test_answers_of_failed_problems_are_explained_in_groups_of_their_own() -> None:
    # a failed; b was solved once; c failed and has no answer.
    rows = pa.table(
        {
            "problem_id": list("aabbcc"),
            "group": [0, 0, 1, 1, 2, 2],
            "correct": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
            "problem.question": [f"{name}?" for name in "aabbcc"],
            "problem.messages": pa.nulls(6),
        }
    )
    problem: Any = {"problem_id": "a", "question": "a?", "answer": "1200", "answer_given": "1,200", "solution": None}
    (hint,), _ = hints_of(problem, gold, (1.0,), reveals=True)
    assert hints_of(problem, gold, (1.0,)) == ([], "every hint would reveal the answer")
    hints = pa.Table.from_pylist([vars(hint)])
    round_ = round_of(rows, hints=hints)
    plan = explain(round_, np.random.default_rng(0), n=2, template="{question} = {hint}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert (plan.problem_id.to_pylist(), found["n"], "group" in found) == (["a"], [2], False)
    assert found["messages"] == [[{"role": "user", "content": "a? = 1,200"}]]
    assert (found["trained_prompt"], found["origin"], "hint_text" in found) == (["problem"], ["explained"], False)
    assert plan.skipped == {"no hint of level 1": 1}
    guided_ = guide(round_, np.random.default_rng(0))  # a wave that does not say so is not served such a hint
    assert guided_ is not None
    assert (guided_.num_rows, guided_.skipped["the hint states the answer"]) == (0, 1)


def test_explanations_change_neither_advantages_nor_difficulty() -> None:
    # Without them a fails whole: two own rows of 0. With a right explanation the own ones still have no variance.
    rows = pa.table(
        {
            "rollout_id": ["a0", "a1", "x"],
            "problem_id": ["a", "a", "a"],
            "group_id": ["a", "a", "a@x"],
            "hint_level": pa.array([0, 0, 0], pa.int32()),
            "origin": [None, None, "explained"],
            "messages": pa.array([None, None, [{"role": "user", "content": "a? = 7"}]]),
            "policy": ["p", "p", "p"],
            "reward": [0.0, 0.0, 1.0],
            "correct": [False, False, True],
        }
    )
    batch = first_batch(rows)
    assert batch.table.column("taken").to_pylist() == [True, True, True]
    assert len(set(batch.table.column("group").to_pylist()[:2])) == 1
    assert batch.table.column("group")[2] != batch.table.column("group")[0]
    measured = measured_of(rows.select(["rollout_id", "problem_id", "reward", "correct"]), rows)
    assert (measured.n.tolist(), measured.k.tolist()) == ([2], [0])


POOL = pa.table(
    {
        "problem_id": list("abcd"),
        "question": ["a?", "b?", "c?", "d?"],
        "answer": ["7", "8", "9", "1"],
        "solution": ["6+1=7", "9-1=8", "3+4=7\n7+2=9", None],
    }
)


def test_every_problem_is_asked_again_behind_examples_that_do_not_state_its_answer() -> None:
    # For a the example c says 7, d has no solution: b alone is left. For b there are a and c. d is a given row.
    rows = pa.table(
        {
            "problem_id": list("aabbd"),
            "group": [0, 0, 1, 1, 2],
            "origin": [None, None, "own", None, "expert"],
            "problem.question": ["a?", "a?", "b?", "b?", "d?"],
            "problem.messages": pa.nulls(5),
            "problem.answer": list("77881"),
            "wave": [0, 0, 0, 0, 1],
        }
    )
    plan = examples(round_of(rows, POOL), np.random.default_rng(0), num=2, n=3, template="{examples}|{question}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    said = [messages[0]["content"] for messages in found["messages"]]
    assert (plan.problem_id.to_pylist(), found["group"], found["n"]) == (["a", "b"], ["0", "1"], [3, 3])
    assert said[0] == "b?\n9-1=8|a?"
    assert sorted(said[1].removesuffix("|b?").split("\n\n")) == ["a?\n6+1=7", "c?\n3+4=7\n7+2=9"]
    assert set(found["origin"]) == {"exemplified"}
    assert set(found["trained_prompt"]) == {"problem"}


def test_a_problem_with_the_same_question_is_no_example() -> None:
    pool = pa.table({"problem_id": list("ae"), "question": ["a?", "a?"], "answer": list("74"), "solution": ["x", "y"]})
    rows = pa.table(
        {
            "problem_id": ["a"],
            "group": [0],
            "origin": pa.nulls(1, pa.string()),
            "problem.question": ["a?"],
            "problem.messages": pa.nulls(1),
            "problem.answer": ["7"],
            "wave": [0],
        }
    )
    plan = examples(round_of(rows, pool), np.random.default_rng(0))
    assert plan is not None
    assert (plan.num_rows, plan.skipped) == (0, {"no worked example that does not state the answer": 1})


def test_failed_problems_see_the_most_similar_solved_ones() -> None:
    # a failed. b shares two of three words with it, c none; d shares all three, and says 7, the answer of a.
    rows = pa.table(
        {
            "problem_id": list("aabcdd"),
            "group": [0, 0, 1, 2, 3, 3],
            "correct": [0.0, 0.0, 1.0, 1.0, 0.0, 1.0],
            "origin": pa.nulls(6, pa.string()),
            "completion": ["x", "y", "it is 4", "it is 5", "no", "it is 7"],
            "problem.question": ["red big box", "red big box", "red big cat", "sum", "box big red", "box big red"],
            "problem.messages": pa.nulls(6),
            "problem.answer": ["7", "7", "4", "5", "7", "7"],
        }
    )
    plan = neighbours(round_of(rows), np.random.default_rng(0), num=1, template="{examples}|{question}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert plan.problem_id.to_pylist() == ["a"]
    assert found["messages"][0][0]["content"] == "red big cat\nit is 4|red big box"
    assert (found["group"], found["origin"], found["trained_prompt"]) == (["0"], ["guided"], ["problem"])


def test_the_ratio_is_to_what_was_sampled_with_the_hint() -> None:
    # With the hint 0.8, 0.25 and 0.2, without it 0.4, 0.5 and 0.1: ratios 0.5, 2 and 0.5, bounds 0.8 and 1.25.
    now = torch.tensor([0.4, 0.5, 0.1]).log().requires_grad_()
    tokens = {"now.logp": now, "sampler.logp": torch.tensor([0.8, 0.25, 0.2]).log(), "old.logp": now.detach()}
    rows = Rows({}, {**tokens, "advantage": torch.tensor([1.0, 1.0, -1.0])}, torch.tensor([3]))
    loss, metrics = behaviour_clip(rows, clip_high=0.25)
    assert loss.tolist() == pytest.approx([-0.5, -1.25, 0.8])
    assert metrics["ratio_mean"].tolist() == pytest.approx([0.5, 2.0, 0.5])
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([-0.5, 0.0, 0.0])
