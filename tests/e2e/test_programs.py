"""Programs judged through the real program, from a folder of a user's own files; counted from the files."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Program
from tests.sandboxes import needs_sandbox

pytestmark = needs_sandbox

RIGHT = "a, b = map(int, input().split())\nprint(a + b)"
HALF = "a, b = map(int, input().split())\nprint(a + b if a < 2 else 'none')"
PROGRAMS = {RIGHT: 4, HALF: 2, "import os\nos._exit(0)": 0, "while True: pass": 0}
"""The tests of four that a program passes."""
ALONE = """
import os
import socket


def alone(rows):
    found = []
    for row in rows:
        try:
            socket.create_connection(("127.0.0.1", int(row["completion"])), timeout=5).close()
            reached = True
        except OSError:
            reached = False
        found.append({"value": float(reached or os.path.exists("HOME/problems.jsonl")), "correct": reached})
    return found
"""


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    made = new_program(warm=True)
    problems: list[dict[str, Any]] = []
    rollouts: list[dict[str, Any]] = []
    for number in range(3):
        tests = {"inputs": [f"{a} {number}" for a in range(4)], "outputs": [str(a + number) for a in range(4)]}
        problems.append({"problem_id": f"add{number}", "question": f"Add {number}.", "tests": tests})
        for at, code in enumerate(PROGRAMS):
            fenced = f"So:\n```python\n{code}\n```"
            rollouts.append({"problem_id": f"add{number}", "sample": at, "completion": fenced})
    (made.home / "problems.jsonl").write_text(lines(problems))
    (made.home / "rollouts.jsonl").write_text(lines(rollouts))
    return made


def test_problems_with_tests_and_no_answer_are_ingested_and_scored(program: Program) -> None:
    problems = program.json("ingest", "problems.jsonl", "--set", "answers=optional")
    asked = ("score", "--rollouts", "rollouts.jsonl", "--problems", problems["artifact"], "--reward", "program")
    limits = ("--set", "rewards.0.test_s=1.0", "--set", "rewards.0.total_s=4.0")
    share = program.json(*asked, *limits, "--set", "rewards.0.score=share")
    every = program.json(*asked, *limits)
    for found, worth in ((share, lambda passed: passed / 4), (every, lambda passed: float(passed == 4))):
        rows = program.rows(found["artifact"])
        counted = Counter((row["extracted"].strip(), row["reward"], row["correct"]) for row in rows)
        assert counted == Counter({(code, worth(passed), passed == 4): 3 for code, passed in PROGRAMS.items()})
    marks = {row["extracted"].strip(): row["marks"] for row in program.rows(share["artifact"])}
    assert [(m["name"], m["value"]) for m in marks[HALF]] == [("program", 0.5), *(("test", v) for v in (1, 1, 0, 0))]
    assert [m["label"] for m in marks[HALF]][::4] == ["2 of 4 tests", "none\n"]
    assert marks["while True: pass"][1]["label"] == "ended by its limit of time"


def test_a_limit_that_would_leave_rows_unjudged_is_refused(program: Program) -> None:
    code, _, err = program.run(
        *("score", "--rollouts", "rollouts.jsonl", "--problems", "problems.jsonl", "--reward", "program"),
        *("--set", "rewards.0.total_s=9"),
    )
    assert code == 2
    assert "total_s = 9 is not below item_timeout_s = 5" in err


def test_a_reward_of_the_users_own_may_be_shut_in(program: Program, server: Any) -> None:
    (program.home / "alone.py").write_text(ALONE.replace("HOME", str(program.home)))
    rows = [{"problem_id": f"p{at}", "completion": str(urlsplit(server.url).port), "answer": "1"} for at in range(3)]
    (program.home / "own.jsonl").write_text(lines(rows))
    asked = ("score", "--rollouts", "own.jsonl", "--reward", "alone.py:alone")
    free, shut = program.json(*asked), program.json(*asked, "--set", "rewards.0.isolated=true")
    assert free["artifact"] != shut["artifact"]
    assert [row["reward"] for row in program.rows(free["artifact"])] == [1.0] * 3
    assert [row["reward"] for row in program.rows(shut["artifact"])] == [0.0] * 3


def test_only_a_function_of_the_users_own_is_shut_in(program: Program) -> None:
    code, _, err = program.run(
        *("score", "--rollouts", "rollouts.jsonl", "--reward", "math", "--set", "rewards.0.isolated=true")
    )
    assert code == 2
    assert "isolated is for a function of yours" in err
