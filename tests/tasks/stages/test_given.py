"""Stage given: worked solutions, and traces of somebody else, as rows of an update."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import load_policy
from gradus.tasks.config.learning import GivenConfig, WarmstartConfig
from gradus.tasks.identity.pins import pinned
from tests.tasks.stages.test_learning import policy, stage

PROBLEMS = pa.table(
    {
        "problem_id": ["a", "b", "c", "d"],
        "question": ["1 + 2 + 3 =", "4 + 5 =", "6 + 7 =", "8 + 9 ="],
        "answer": ["6", "9", "13", None],
        "solution": ["1+2=3\n3+3=6", "4+5=9", None, "8+9=17"],
    }
)


def test_a_worked_solution_becomes_the_tokens_that_the_policy_would_have_written(store: Store, tmp_path: Path) -> None:
    ref = policy(store, tmp_path / "policy")
    as_written = PROBLEMS.append_column("answer_given", pa.array(["06", None, None, None]))
    inputs = {"problems": [store.put("problems", as_written)], "policy": [ref]}
    template = "{solution}\n#### {answer}"
    _, report = stage(store, "given", "rollouts", "b", inputs=inputs, origin="teacher", template=template)
    assert (report["summary"]["rows"], report["summary"]["without_solution"]) == (2, 2)
    first, second = store.read(Ref("rollouts", "b" * 32)).to_pylist()
    assert first["rollout_id"] == f"{'b' * 16}:a@teacher"
    assert [row["completion"] for row in (first, second)] == ["1+2=3\n3+3=6\n#### 06", "4+5=9\n#### 9"]
    loaded = load_policy(store.path(ref))
    assert loaded.tokenizer.decode(first["prompt_tokens"]).strip() == "1 + 2 + 3 ="
    assert first["completion_tokens"][-1] == loaded.end_tokens[0]
    assert loaded.tokenizer.decode(first["completion_tokens"][:-1]) == first["completion"]
    assert {(row["origin"], row["logprobs"], row["policy"]) for row in (first, second)} == {("teacher", None, None)}


def test_problems_without_any_worked_solution_are_refused(store: Store, tmp_path: Path) -> None:
    inputs = {
        "problems": [store.put("problems", PROBLEMS.slice(2, 1))],
        "policy": [policy(store, tmp_path / "policy")],
    }
    with pytest.raises(BadInputError, match="no problem has a worked solution"):
        stage(store, "given", "rollouts", "b", inputs=inputs)


def test_what_is_given_stands_as_it_is_and_a_wrong_one_is_judged_wrong(store: Store, tmp_path: Path) -> None:
    solved = {"a": r"It is \boxed{6}.", "b": "4+5=8, so {answer}", "d": "no gold"}
    table = PROBLEMS.set_column(3, "solution", pa.array([solved.get(name) for name in "abcd"]))
    problems = store.put("problems", table)
    inputs = {"problems": [problems], "policy": [policy(store, tmp_path / "policy")]}
    rows, report = stage(store, "given", "rollouts", "b", inputs=inputs)
    assert report["summary"]["rows"] == 3
    # The tiny tokenizer knows no letters: what it can write of a text is what comes back.
    texts = {row["problem_id"]: row["completion"] for row in store.read(rows).to_pylist()}
    assert not any("####" in text for text in texts.values())
    assert "9" not in texts["b"]
    rewards = [{"name": "numeric"}]
    scores, _ = stage(
        store, "score", "scores", "c", inputs={"rollouts": [rows], "problems": [problems]}, rewards=rewards
    )
    judged = {row["problem_id"]: row["correct"] for row in store.read(scores).to_pylist()}
    assert (judged["a"], judged["b"]) == (True, False)


def test_traces_of_a_file_are_several_a_problem_by_id_or_question(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    given = [
        {"problem": "a", "source": "r1", "text": "1+2=3\n3+3=6\n#### 6"},
        {"problem": "a", "source": "r1", "text": "1+2=3\n3+3=7\n#### 7"},
        {"problem": " 4 +  5 =", "text": "#### 9"},
        {"problem": "nowhere", "text": "#### 1"},
        {"problem": "b"},
        {"problem": "c", "text": "1+" * 200},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in given))
    problems = store.put("problems", PROBLEMS)
    inputs = {"problems": [problems], "policy": [policy(store, tmp_path / "policy")]}
    rows, report = stage(store, "given", "rollouts", "b", inputs=inputs, rows=str(file))
    found = store.read(rows).to_pylist()
    assert [(row["problem_id"], row["completion"], row["source"]) for row in found] == [
        ("a", given[0]["text"], "r1"),
        ("a", given[1]["text"], "r1"),
        ("b", "#### 9", None),
    ]
    assert len({row["rollout_id"] for row in found}) == 3
    assert report["summary"]["refused"] == {
        "its problem is not among the training problems": 1,
        "no text": 1,
        "longer than the policy's context": 1,
    }
    rewards = [{"name": "numeric"}]
    scores, _ = stage(
        store, "score", "scores", "c", inputs={"rollouts": [rows], "problems": [problems]}, rewards=rewards
    )
    assert [row["correct"] for row in store.read(scores).to_pylist()] == [True, False, True]


def test_a_file_of_traces_is_part_of_what_the_rows_depend_on(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text("1")
    first = pinned(GivenConfig(rows=str(file)))
    file.write_text("2")
    assert first.identified() != pinned(GivenConfig(rows=str(file))).identified()
    with pytest.raises(ValueError, match="rows of a file are trained on as they stand"):
        GivenConfig(rows=str(file), template="{solution} {answer}")
    with pytest.raises(ValueError, match="every solution would be the same"):
        WarmstartConfig(template="{answer}")
