"""MPO by hand: grades by a rubric, the rubric written anew, kept, and the reward."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.by_use import of_use
from gradus.data.curation.round import Round, round_of
from gradus.data.curation.shapes.graded import graded
from gradus.data.curation.tracked import Tracked, changed_rows
from gradus.data.curation.trackers.texts import inside, rubric
from gradus.data.curation.uses import LEARN
from gradus.data.curation.waves.rubrics import grade, rewrite


def rows(**columns: Any) -> pa.Table:
    """Two answers to a, of which one was graded twice, a failed one to b, a grade without a number, and two rubrics."""
    known = {
        "rollout_id": ["a0", "a1", "b0", "j0", "j1", "j2", "m0", "m1"],
        "problem_id": list("aabaaaaa"),
        "group": [0, 0, 1, 2, 3, 4, 5, 6],
        "completion": ["5", "{rubric}", None, *"xxx", "<rubric>Be right.</rubric>", "<rubric>never closed"],
        "problem.question": [f"{name}?" for name in "aabaaaaa"],
        "problem.messages": pa.nulls(8),
        "reward": [1.0, 0.0, None, 0.25, 0.75, None, None, None],
        "use": [None, None, None, "judge", "judge", "judge", "rubric", "rubric"],
        "about": [None, None, None, ["a0"], ["a0"], ["a1"], ["a0"], ["a0"]],
        "rubric.text": pa.nulls(8, pa.string()),
    }
    return pa.table({**known, **columns})


def the_round(index: int = 1, columns: dict[str, Any] | None = None) -> Round:
    return round_of(rows(**(columns or {})), index=index)


def test_every_answer_is_graded_by_the_rubric_of_the_tracker() -> None:
    plan = grade(the_round(), np.random.default_rng(0), template="{question} {answer} {rubric}")
    assert plan is not None
    assert plan.columns["about"].to_pylist() == [["a0"], ["a1"]]
    ours = "A good answer is correct, complete, and shows its steps."
    asked = [each[0]["content"] for each in plan.columns["messages"].to_pylist()]
    assert asked == [f"a? 5 {ours}", f"a? {{rubric}} {ours}"]  # what a model wrote is no place of the template
    kept = the_round(1, {"rubric.text": ["Be right."] * 8})
    plan = grade(kept, np.random.default_rng(0), template="{rubric}")
    assert plan is not None
    assert plan.columns["messages"].to_pylist()[0][0]["content"] == "Be right."


def test_the_rubric_is_written_anew_after_graded_answers() -> None:
    assert rewrite(the_round(9), np.random.default_rng(0)) is None
    plan = rewrite(the_round(10), np.random.default_rng(0), template="{rubric} {samples}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert (found["use"], found["role"], found["about"], found["n"]) == (["rubric"], ["meta"], [["a0", "a0"]], [1])
    said = found["messages"][0][0]["content"]
    assert said.endswith(
        "".join(f"Question:\na?\nAnswer:\n```text\n5\n```\nGrade: {grade}\n\n" for grade in (0.25, 0.75)).rstrip()
    )
    ungraded = the_round(10, {"reward": pa.nulls(8, pa.float64())})
    assert rewrite(ungraded, np.random.default_rng(0)) is None


def test_the_last_whole_rubric_is_kept() -> None:
    before = Tracked(changed_rows({"text": [], "round": []}, (), ("text", "round")), keys=())
    assert rubric(before, the_round(4)) == {"text": ["Be right."], "round": [4]}
    assert rubric(before, the_round(4), max_chars=2) == {"text": ["Be"], "round": [4]}
    none = the_round(4, {"completion": ["5"] * 8})
    assert rubric(before, none) == {"text": [], "round": []}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("<rubric>a</rubric><rubric> b\nc </rubric> so", "b\nc"),
        ("a</rubric>", ""),
        ("<rubric></rubric>", ""),
        ("</rubric><rubric>", ""),
        ("<rubric>" * 100_000, ""),
    ],
)
def test_a_rubric_stands_between_marks(answer: str, kept: str) -> None:
    assert inside(answer, 99) == kept


def test_the_mean_grade_is_the_reward() -> None:
    table = rows()
    found = graded(BatchRows(of_use(table, LEARN), beside=table))
    assert found["reward"].tolist() == pytest.approx([0.5, np.nan, np.nan], nan_ok=True)
    assert found["disagreement"].tolist() == pytest.approx([0.25, np.nan, np.nan], nan_ok=True)  # of 0.25 and 0.75
    kept = graded(BatchRows(of_use(table, LEARN), beside=table), keep=True)
    assert kept["reward"].tolist() == pytest.approx([0.5, 0.0, np.nan], nan_ok=True)  # of the rules: 1, 0 and none
