"""Scaf-GRPO's replacement and SELF's probe, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import Rows
from gradus.data.curation.batch import BatchRows
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.probed import without_probe
from gradus.data.curation.shapes.scaffold import icpo, scaffold
from gradus.data.curation.waves.probed import unsolved

NAN = np.nan
# a: failed, helped at level 2 by its second rollout and at 3; b: failed, never helped; c: solved without hints.
ROWS = {
    "problem_id": np.array([*"aaabbbcc", *"aaaa", "b"], dtype=np.object_),
    "group": np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 6]),
    "hint_level": np.array([0, 0, NAN, 0, 0, 0, 0, 0, 1, 2, 2, 3, 1]),
    "correct": np.array([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0.0]),
}


def test_the_first_helped_rollout_takes_the_place_of_a_failed_one() -> None:
    found = scaffold(BatchRows(pa.table({"rollout_id": [str(i) for i in range(13)], **ROWS})))
    assert np.flatnonzero(found["taken"]).tolist() == [1, 2, 3, 4, 5, 6, 7, 10]
    assert found["group"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 0, 5, 6]
    assert [found["reason"][0], found["reason"][8]] == [
        "a rollout that a hint has helped takes its place",
        "it was shown a hint",
    ]
    own = np.array(found["group"])[found["taken"]] == 0
    reward = ROWS["correct"][found["taken"]][own]
    assert reward.tolist() == [0, 0, 1]  # of three failed ones two are left, and there is a gradient


@pytest.mark.parametrize(("replaced", "taken"), [(2, [2, 8, 10]), (9, [8, 9, 10])])
def test_as_many_are_replaced_as_were_helped_at_that_level(replaced: int, taken: list[int]) -> None:
    rows = {
        "problem_id": np.array(["a"] * 12, dtype=np.object_),
        "group": np.array([0, 0, 0, 7, 7, 7, 7, 7, 1, 1, 1, 1]),
        "hint_level": np.array([0, 0, 0, 9, 9, 9, 9, 9, 1, 1, 1, 1.0]),
        "correct": np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1 if replaced == 9 else 0, 1, 0.0]),
    }
    found = scaffold(BatchRows(pa.table({"rollout_id": [str(i) for i in range(12)], **rows})), replaced=replaced)
    assert np.flatnonzero(found["taken"]).tolist() == taken
    assert set(np.array(found["group"])[found["taken"]]) == {0}


def test_a_group_with_a_right_rollout_of_its_own_stays_as_it_is() -> None:
    rows = {
        "problem_id": np.array(["a"] * 4, dtype=np.object_),
        "group": np.array([0, 0, 1, 1]),
        "hint_level": np.array([0, 0, 1, 1.0]),
        "correct": np.array([0, 1, 1, 1.0]),
    }
    found = scaffold(BatchRows(pa.table({"rollout_id": list("wxyz"), **rows})))
    assert found["taken"].tolist() == [True, True, False, False]


def test_problems_whose_probe_failed_are_sampled_and_the_probe_is_left_out() -> None:
    rows = pa.table(
        {"problem_id": list("abc"), "group": [0, 1, 2], "correct": [1.0, 0.0, None], "hint_level": [0, 0, 0]}
    )
    plan = unsolved(round_of(rows), np.random.default_rng(0))
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["b"]
    assert (plan.columns["n"].to_pylist(), plan.columns["temperature"].to_pylist()) == ([8], [1.0])
    found = without_probe(Rows({"temperature": np.array([0.0, 1.0, 0.7])}))  # pyright: ignore[reportArgumentType]
    assert found["taken"].tolist() == [False, True, True]


def test_right_rollouts_behind_examples_stay_with_a_bonus() -> None:
    rows = pa.table(
        {
            "rollout_id": list("abcde"),
            "origin": [None, None, None, "exemplified", "exemplified"],
            "correct": [False, False, True, True, False],
            "reward": [0.0, 0.0, 1.0, 1.0, 0.0],
        }
    )
    found = icpo(BatchRows(rows), bonus=0.25)
    assert found["taken"].tolist() == [True, True, True, True, False]
    assert found["reason"] == "it is wrong although it was shown examples"
    assert found["reward"].tolist() == [0.0, 0.0, 1.0, 1.25, 0.0]
    assert np.nanmean(found["kept_frac"]) == 0.5
    assert icpo(BatchRows(rows))["reward"].tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]  # annealed
