"""Stage given: worked solutions as rows of an update."""

from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import load_policy
from tests.tasks.stages.test_learning import policy, stage

PROBLEMS = pa.table(
    {
        "problem_id": ["a", "b", "c", "d"],
        "question": ["1 + 2 + 3 =", "4 + 5 =", "6 + 7 =", "8 + 9 ="],
        "answer": ["6", "9", "13", None],
        "solution": ["1+2=3\n3+3=6", "4+5=9", None, "8+9=17"],
    }
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "lake")


def test_a_worked_solution_becomes_the_tokens_that_the_policy_would_have_written(store: Store, tmp_path: Path) -> None:
    ref = policy(store, tmp_path / "policy")
    inputs = {"problems": [store.put("problems", PROBLEMS)], "policy": [ref]}
    _, report = stage(store, "given", "rollouts", "b", inputs=inputs, origin="teacher")
    assert (report["summary"]["rows"], report["summary"]["without_solution"]) == (2, 2)
    first, second = store.read(Ref("rollouts", "b" * 32)).to_pylist()
    assert first["rollout_id"] == f"{'b' * 16}:a@teacher"
    assert [row["completion"] for row in (first, second)] == ["1+2=3\n3+3=6\n#### 6", "4+5=9\n#### 9"]
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
