"""The wave `seele`: the share of a solution by a logistic curve, by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.round import round_of
from gradus.data.curation.waves.responsive import seele, share_of
from tests.tasks.stages.test_wave import asked

HINTS = [(p, level, f"{p} {level}\n", False) for p in "abc" for level in (1, 2, 3)]


def test_the_share_at_the_target_by_hand() -> None:
    # One rate p at h = 0: b = -ln(p / (1 - p)) / 8, so 0.2433 of p = 1/8; for a target of 0.25 it is ln(3) / 8 less.
    bare = np.array([0.0])
    assert share_of(bare, np.array([0.125]), 0.5, 8.0, 0.0) == pytest.approx(0.24, abs=0.005)
    assert share_of(bare, np.array([0.125]), 0.25, 8.0, 0.0) == pytest.approx(0.24 - np.log(3) / 8, abs=0.005)
    assert share_of(bare, np.array([0.0]), 0.5, 8.0, 0.0) == 1.0
    assert share_of(bare, np.array([1.0]), 0.5, 8.0, 0.0) == 0.0
    # 0 at h = 0 and a half at h = 0.75 are those of b = 0.75, but for P(0) = 1 / (1 + e^6).
    assert share_of(np.array([0.0, 0.75]), np.array([0.0, 0.5]), 0.5, 8.0, 0.0) == pytest.approx(0.75, abs=0.011)
    # With a guess of 1/4 a rate of 5/8 is the curve's middle.
    assert share_of(np.array([0.5]), np.array([0.625]), 0.625, 8.0, 0.25) == pytest.approx(0.5)


def test_problems_are_asked_with_the_nearest_hint_in_one_group_until_they_are_close(tmp_path: Path) -> None:
    verdicts = {"a": [True, *[False] * 7], "b": [True] * 4 + [False] * 4, "c": [False] * 8}
    plan, _ = asked(tmp_path, "seele", verdicts, hints=HINTS, fractions=[0.25, 0.5, 0.75] * 3)
    assert [(row["problem_id"], row["hint_level"], row["hint_text"]) for row in plan] == [
        ("a", 1, "a 1\n"),  # 0.24 of the solution
        ("c", 3, "c 3\n"),  # all of it
    ]
    assert [row["group_id"] for row in plan] == ["a@r3h0", "c@r3h0"]
    assert [row["plan_id"] for row in plan] == ["a@r3h1", "c@r3h3"]
    assert plan[0]["reason"] == "pass rate 0.125 with 0.00 of the solution, 0.24 is wanted"


def test_a_hint_that_was_shown_or_is_withheld_is_not_shown() -> None:
    rows = pa.table(
        {
            "problem_id": list("aabb"),
            "group": [0, 0, 1, 1],
            "correct": [0.0, 0.0, 1.0, 1.0],
            "hint_level": pa.array([0, 2, 0, 1], pa.int32()),
        }
    )
    names, levels = ["a", "a", "b"], [1, 2, 1]
    hints = pa.table(
        {
            "problem_id": names,
            "level": pa.array(levels, pa.int32()),
            "fraction": [0.4, 0.9, 0.5],
            "text": ["x", "y", "z"],
            "leaks_answer": [True, False, False],
        }
    )
    assert seele(round_of(rows, hints=hints), np.random.default_rng(0)) is None  # a was shown 0.9, b needs no hint
    assert seele(round_of(rows), np.random.default_rng(0)) is None
