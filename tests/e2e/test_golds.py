"""Problems with several golds: each is right, and none makes another answer right."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gradus.data.answers import further_golds
from gradus.models.rewards.base import Verdict, best
from tests.e2e.conftest import Program

PROBLEMS: list[dict[str, Any]] = [
    {
        "problem_id": "a",
        "question": "A square root of 4?",
        "answer": "2",
        "golds": ["-2"],
        "solution": "so -2\nor 2\nend",
    },
    {"problem_id": "b", "question": "Capital?", "answer": "Bern", "golds": ["Berne", 7]},
    {"problem_id": "c", "question": "One gold", "answer": "5"},
    {"problem_id": "d", "question": "Other golds alone", "golds": ["8", "9"]},
]
SAID = {
    "a": {"2": True, "-2": True, "3": False},
    "b": {"bern": True, "Berne": True, "7": True, "Basel": False},
    "c": {"5": True, "-2": False},
    "d": {"8": True, "9": True, "5": False},
}


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    made = new_program(warm=True)
    (made.home / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    rows = [{"problem_id": name, "completion": f"#### {text}"} for name, said in SAID.items() for text in said]
    (made.home / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_each_gold_is_right(program: Program) -> None:
    problems = program.json("ingest", "p.jsonl", "--set", "answers=optional")["artifact"]
    scores = program.json("score", "--rollouts", "r.jsonl", "--problems", problems, "--reward", "exact")
    found = [(row["problem_id"], row["correct"]) for row in program.rows(scores["artifact"])]
    assert found == [(name, right) for name, said in SAID.items() for right in said.values()]


def test_golds_are_texts_and_numbers_of_a_list() -> None:
    assert further_golds('{"golds": ["a", 3, null, ["b"], 0.5]}') == ["a", "3", "0.5"]
    for extra in ('{"golds": "a"}', None, "{}", '["golds"]', '{"golds": [true]}', '{"golds": '):
        assert further_golds(extra) == [], extra


def test_the_best_verdict_counts() -> None:
    right, half, wrong, failed = Verdict(1.0, "correct"), Verdict(0.5), Verdict(0.0, "wrong"), Verdict(None, "error")
    assert best([wrong, right, half]) is right
    assert best([wrong, half, failed]) is half
    assert best([failed, wrong]) is wrong
    assert best([failed, failed]) is failed
