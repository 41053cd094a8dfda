"""Tango's wave and shapes, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.verified import agrees, verified
from gradus.data.curation.waves.verified import verify

NAN = np.nan


def test_a_verifier_is_asked_about_answers_that_are_there() -> None:
    rows = pa.table(
        {
            "problem_id": list("aaabb"),
            "group": [0, 0, 0, 1, 1],
            "completion": ["x", "y", "z", "u", None],
            "problem.question": ["a?", "a?", "a?", "b?", "b?"],
            "problem.messages": pa.nulls(5, pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))),
        }
    )
    plan = verify(round_of(rows), np.random.default_rng(0), n=3, template="{question} {answer}")
    assert plan is not None
    assert plan.columns["about"].to_pylist() == [["0"], ["1"], ["2"], ["3"]]
    assert [each[0]["content"] for each in plan.columns["messages"].to_pylist()] == ["a? x", "a? y", "a? z", "b? u"]
    assert plan.columns["n"].to_pylist() == [3] * 4
    assert plan.columns["role"].to_pylist() == ["verifier"] * 4
    drawn = [verify(round_of(rows), np.random.default_rng(seed), per_group=1) for seed in range(20)]
    named = [each.columns["about"].to_pylist() for each in drawn if each is not None]
    assert {len(each) for each in named} == {2}
    assert {each[0][0] for each in named} == {"0", "1", "2"}
    assert {each[1][0] for each in named} == {"3"}


def test_a_verdict_is_rewarded_if_the_outcome_says_the_same() -> None:
    policy = pa.table(
        {"rollout_id": ["x", "y", "z"], "use": ["policy"] * 3, "correct": [True, False, None], "about": [None] * 3}
    )
    own = pa.table(
        {
            "rollout_id": [f"v{n}" for n in range(6)],
            "about": [["x"], ["x"], ["y"], ["y"], ["z"], ["gone"]],
            "reward": [1.0, 0.0, 0.0, None, 1.0, 1.0],
        }
    )
    rows = BatchRows(own, beside=policy)
    assert agrees(rows)["reward"].tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0, NAN, NAN], nan_ok=True)


def test_the_policys_reward_gains_the_share_of_verdicts_for_it() -> None:
    judge = pa.table(
        {
            "use": ["judge"] * 5,
            "about": [["a"], ["a"], ["a"], ["b"], ["gone"]],
            "reward": [1.0, 1.0, 0.0, None, 1.0],
        }
    )
    rows = BatchRows(pa.table({"rollout_id": list("abc"), "reward": [1.0, 0.5, 0.0]}), beside=judge)
    assert verified(rows, alpha=0.3)["reward"].tolist() == pytest.approx([1.2, 0.5, 0.0])
