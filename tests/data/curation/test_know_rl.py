"""KnowRL's search by hand: three points, of which either of two may go, but not both."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.round import Round, round_of
from gradus.data.curation.tracked import Tracked
from gradus.data.curation.trackers.subsets import know_rl
from gradus.data.curation.waves.hinted import knowledge_subsets
from gradus.data.hints import hints_of
from gradus.data.hints.points import next_subsets, points_of, smallest_enough
from gradus.data.hints.strategies.knowledge import knowledge

POINTS = {"knowledge": ["one", "it is 7", "two ", "three"]}
ACCURACY = {0b111: 0.5, 0b110: 0.5, 0b101: 0.75, 0b011: 0.25, 0b100: 0.0}


def test_points_that_state_the_answer_are_left_out_and_the_first_tier_stands_for_missing_ones() -> None:
    assert points_of('{"knowledge": "one rule"}', "7", "?") == ["one rule"]
    assert points_of('{"tiers": "a plan"}', "7", "?") == []
    assert points_of(json.dumps(POINTS), "7", "?") == ["one", "two", "three"]
    assert points_of('{"tiers": [["a", ""], ["b"]]}', "7", "?") == ["a"]
    assert points_of(None, "7", "?") == points_of("{}", "7", "?") == []


def test_dropping_points_one_by_one_may_help_where_dropping_them_together_hurts() -> None:
    assert next_subsets({}, 3, 0.0, 9) == [0b111, 0b110, 0b101, 0b011]
    one_by_one = {subset: ACCURACY[subset] for subset in (0b111, 0b110, 0b101, 0b011)}
    assert next_subsets(one_by_one, 3, 0.0, 9) == [0b100]  # without the first and the second: neither was missed
    assert next_subsets(one_by_one, 3, 0.25, 2) == [0b100, 0b010]
    assert next_subsets(ACCURACY, 3, 0.0, 9) == []
    assert smallest_enough(ACCURACY, 3, 0.0) == 0b101
    assert smallest_enough({**ACCURACY, 0b100: 0.75}, 3, 0.0) == 0b100
    assert smallest_enough({0b111: 1.0, 0b110: 0.5, 0b101: 0.5, 0b011: 0.5}, 3, 0.0) == 0b111


def round_with(probes: list[tuple[int, float | None]], calls: int) -> Round:
    """Problem a with three points and b with one, two answers each, and answers of a behind subsets of its points."""
    num = len(probes)
    rows = pa.table(
        {
            "rollout_id": [*"abcd", *(f"p{at}" for at in range(num))],
            "problem_id": [*"aabb", *"a" * num],
            "group": [0, 0, 1, 1, *[2] * num],
            "use": pa.array([None] * 4 + ["probe"] * num, pa.string()),
            "correct": [0.0, 1.0, 0.0, 0.0, *(right for _, right in probes)],
            "plan.subset": pa.array([None] * 4 + [subset for subset, _ in probes], pa.int64()),
            "problem.extra": [json.dumps(POINTS)] * 2 + ['{"knowledge": ["x"]}'] * 2 + [json.dumps(POINTS)] * num,
            "problem.answer": ["7"] * (4 + num),
            "problem.question": ["?"] * (4 + num),
            "problem.messages": pa.nulls(4 + num),
            "know_rl.kept": [np.nan] * (4 + num),
            "wave": [0] * 4 + [1] * num,
            "call": [0] * (4 + num),
        }
    )
    return round_of(rows, calls=calls)


def test_a_subset_without_a_point_that_is_needed_is_not_kept_however_good() -> None:
    assert smallest_enough({**ACCURACY, 0b010: 0.75}, 3, 0.0) == smallest_enough(ACCURACY, 3, 0.0) == 0b101


def test_of_thirty_dispensable_points_no_more_subsets_are_made_than_are_tried() -> None:
    full = 2**30 - 1
    accuracy = {full: 0.5, **{full - 2**k: 0.5 for k in range(30)}}
    assert next_subsets(accuracy, 30, 0.0, 3) == [full - 0b11, full - 0b101, full - 0b1001]  # two left out, of 2^30
    assert smallest_enough({**accuracy, full - 0b11: 0.5}, 30, 0.0) == full - 0b11


def test_the_wave_tries_subsets_and_the_tracker_keeps_the_smallest_that_is_enough() -> None:
    plan = knowledge_subsets(round_with([], 0), np.random.default_rng(0), n=4, template="{question}|{hint}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert (plan.problem_id.to_pylist(), found["subset"]) == (["a"] * 4, [0b111, 0b110, 0b101, 0b011])
    assert found["messages"][2][0]["content"] == "?|one\nthree"
    assert (set(found["use"]), set(found["n"]), found["about"][0]) == ({"probe"}, {4}, ["a"])
    # Four answers each: 2, 2, 3 and 1 are right, and one more of the third was not judged.
    rights = {0b111: 2, 0b110: 2, 0b101: 3, 0b011: 1}
    probes: list[tuple[int, float | None]] = [
        (subset, float(at < num)) for subset, num in rights.items() for at in range(4)
    ]
    plan = knowledge_subsets(round_with([*probes, (0b101, None)], 1), np.random.default_rng(0))
    assert plan is not None
    assert plan.columns["subset"].to_pylist() == [0b100]
    whole = [*probes, *[(0b100, 0.0)] * 4]
    kept = know_rl(Tracked(pa.table({})), round_with(whole, 2))
    assert kept == {"problem_id": ["a"], "kept": [float(0b101)], "accuracy": [0.75]}
    assert know_rl(Tracked(pa.table({})), round_with([], 0))["problem_id"] == []


@pytest.mark.parametrize(("kept", "text"), [(None, "one\ntwo\nthree\n"), (5.0, "one\nthree\n"), (0.0, None)])
def test_the_hint_has_the_points_that_are_kept(kept: float | None, text: str | None) -> None:
    problem: Any = {"problem_id": "a", "question": "?", "answer": "7", "solution": None, "extra": json.dumps(POINTS)}
    hints, _ = hints_of({**problem, "know_rl.kept": kept}, knowledge, (1.0,))
    assert [hint.text for hint in hints] == ([] if text is None else [text])
