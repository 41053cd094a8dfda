"""Stage hint: levels that show the same text, and steps that state the answer early, are counted."""

from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import GateError
from gradus.data.lake.store import Store
from tests.tasks.stages.test_learning import stage

PROBLEMS = pa.table(
    {
        "problem_id": ["short", "long", "early", "none"],
        "question": ["8 + 5 + 7 =", "8 + 5 + 7 - 1 + 3 =", "9 + 4 - 3 + 3 =", "1 + 1 ="],
        "answer": ["20", "22", "13", "2"],
        "solution": [
            "8+5=13\n13+7=20",
            "8+5=13\n13+7=20\n20-1=19\n19+3=22",
            "9+1=10\n9+4=13\n13-3=10\n10+3=13",
            "1+1=2",
        ],
    }
)


def test_levels_of_the_same_text_and_answers_that_a_step_states_are_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made, report = stage(store, "hint", "hints", "a", inputs={"problems": [store.put("problems", PROBLEMS)]})
    texts: dict[str, list[str]] = {}
    for row in store.read(made).to_pylist():
        texts.setdefault(row["problem_id"], []).append(row["text"])
    assert texts == {
        "short": ["8+5=13\n"] * 3,
        "long": ["8+5=13\n", "8+5=13\n13+7=20\n", "8+5=13\n13+7=20\n20-1=19\n"],
        "early": ["9+1=10\n"] * 3,  # each level is cut before the step that states 13
    }
    assert (report["summary"]["repeated_levels"], report["summary"]["stated_early"]) == (2, 1)


def test_the_reasons_are_said_if_no_problem_can_be_hinted_at(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(GateError, match=r"none of 1 problems can be hinted at \(a single step: 1\)"):
        stage(store, "hint", "hints", "a", inputs={"problems": [store.put("problems", PROBLEMS.slice(3))]})
