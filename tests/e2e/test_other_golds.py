"""Problems without answers, and with answers in JSON, from a user's file to a training and to scores."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.conftest import RECIPE, Program

LENGTHS = {f"{a} + {b} =": (a + b) % 3 + 13 for a in range(2, 6) for b in range(2, 6)}
"""Questions, and the most characters of an answer."""


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    made = new_program(warm=True)
    rows = [{"question": question, "constraints": [{"max_characters": n}]} for question, n in LENGTHS.items()]
    (made.home / "free.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_a_training_needs_no_answer_where_no_reward_does(program: Program) -> None:
    own = ("problems=free.jsonl", "evaluate.problems=free.jsonl", "ingest.answers=optional", "escalate=[]")
    words = [word for text in own for word in ("--set", text)]
    rule = ("--set", 'score.rewards=[{name="constraints"}]', "--set", "score.correct_at=1.0")
    program.json("train", str(RECIPE), *words, *rule, "--run", "free")
    (rows,) = program.json("sql", "select count(*) from samples where run = 'free' and reward is not null")["rows"]
    asked = program.json("sql", "select question, completion, reward from samples where run = 'free'")["rows"]
    assert rows == [len(asked)]
    assert len(asked) > 0
    for question, completion, reward in asked:
        assert reward == float(0 < len(completion.strip()) <= LENGTHS[question])
    assert len({reward for *_, reward in asked}) == 2
    code, _, err = program.run("train", str(RECIPE), *words, "--run", "gold")
    assert (code, "needs gold answers, and no problem has one" in " ".join(err.split())) == (1, True)
    code, _, err = program.run("ingest", "free.jsonl")
    assert (code, "--set answers=optional" in " ".join(err.split())) == (1, True)


def test_answers_in_json_are_judged_by_rewards_that_read_them(program: Program) -> None:
    rows = [{"problem_id": f"p{at}", "question": f"where {at}", "answer": [0, 0, 2, 2 + at]} for at in range(3)]
    (program.home / "boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = program.json("ingest", "boxes.jsonl", "--set", "answers=json")
    assert (problems["rows"], problems["refused"]) == (3, {})
    said = [{"problem_id": f"p{at}", "completion": "It is [0, 0, 2, 2]."} for at in range(3)]
    (program.home / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    scored = program.json(
        "score", "--rollouts", "said.jsonl", "--problems", problems["artifact"], "--reward", "box_iou"
    )
    assert [row["reward"] for row in program.rows(scored["artifact"])] == pytest.approx([1, 2 / 3, 1 / 2])
    code, _, err = program.run("ingest", "boxes.jsonl")
    assert (code, "answer is neither text nor a finite number" in " ".join(err.split())) == (1, True)


def test_each_kind_of_problem_is_judged_by_its_rewards(program: Program) -> None:
    kinds = {"sum": ("numeric", "5"), "box": ("box_iou", [0, 0, 2, 2]), "other": ("", "x")}
    rows = [
        {"problem_id": f"{kind}{at}", "question": f"{kind} {at}", "answer": gold, "domain": kind, "kind": kind}
        for kind, (_, gold) in kinds.items()
        for at in range(2)
    ]
    said = {
        "sum0": "#### 5",
        "sum1": "#### 6",
        "box0": "[0, 0, 2, 1]",
        "box1": "[0, 0, 2, 2]",
        "other0": "",
        "other1": "x",
    }
    (program.home / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [{"problem_id": name, "completion": text} for name, text in said.items()]
    (program.home / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    problems = program.json("ingest", "mixed.jsonl", "--set", "answers=json")["artifact"]
    rewards = '[{name="box_iou", weight=2.0, only=["box"]}, {name="numeric", only=["sum"]}]'
    for column in ("domain", "problem.kind"):
        settings = ("--set", f"rewards={rewards}", "--set", f"reward_by={column}", "--set", "max_error_frac=0.4")
        scores = program.json("score", "--rollouts", "answers.jsonl", "--problems", problems, *settings)
        found = {row["problem_id"]: row for row in program.rows(scores["artifact"])}
        assert [found[name]["reward"] for name in said] == [1.0, 0.0, 1.0, 2.0, None, None]
        assert [found[name]["correct"] for name in ("sum0", "sum1", "box0", "box1")] == [True, False, None, None]
        assert [sorted(dict(found[name]["components"])) for name in ("sum0", "box0")] == [["numeric"], ["box_iou"]]
        assert found["other0"]["error"] == "no reward judges this kind of problem"
    code, _, err = program.run("score", "--rollouts", "answers.jsonl", "--set", f"rewards={rewards}")
    assert (code, "reward_by and only go together" in " ".join(err.split())) == (2, True)
