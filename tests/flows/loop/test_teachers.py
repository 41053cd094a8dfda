"""Several teachers of an update: their models in a training, and those that are refused before anything starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.loop.test_measures import TEACHER, Measured
from tests.flows.recipe.test_guards import START, recipe


def test_an_update_has_the_models_of_its_teachers_in_their_order() -> None:
    given: list[dict[str, list[str]]] = []

    class Noting(Measured):
        def stage(self, call: Call) -> Outcome:
            if call.name == "update":
                given.append({role: [str(ref) for ref in refs] for role, refs in call.inputs.items()})
            return super().stage(call)

    two = {"sums": {"problem.domain": "sums"}, "signs": {"correct": False}}
    update = {"loss": "teacher_kl", "teachers": two}
    roles = {"signs": {"policy": "one"}, "sums": {"policy": "two"}}
    plan = recipe([], rounds=2, update=update, roles=roles, teacher="bundled", escalate=[])
    models = {"signs": Ref("checkpoints", "51" * 16), "sums": Ref("checkpoints", "5a" * 16)}
    train(Noting([0.5] * 9), plan, replace(START, teacher=TEACHER, roles=models))  # pyright: ignore[reportArgumentType] - has no store
    assert [each["teachers"] for each in given] == [[str(models["sums"]), str(models["signs"])]] * 2
    assert [each["teacher"] for each in given] == [[str(TEACHER)]] * 2
    assert all(each["batch"] for each in given)  # whose rows have the domain of their problem
    plain = recipe([], rounds=1, update={"loss": "teacher_kl"}, teacher="bundled", escalate=[])
    train(Noting([0.5] * 9), plain, replace(START, teacher=TEACHER))  # pyright: ignore[reportArgumentType] - has no store
    assert "teachers" not in given[-1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"roles": {}}, "update.teachers.mine: the recipe has no role mine; add [roles.mine] with its policy"),
        ({"roles.mine.policy": ""}, "update.teachers.mine: the role mine is the policy itself, which has nothing to"),
        (
            {"roles.mine.rollout": {"engine": "openai", "server": {"url": "http://127.0.0.1:9", "tokens": False}}},
            "update.teachers.mine: its server answers with text, and a teacher computes log-probs; name a role with",
        ),
        ({"update.loss": "clip"}, "demo.toml: update: teachers: no loss learns from mine; take teacher_kl or distil"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    usual: dict[str, Any] = {"roles.mine.policy": "bundled", "update.loss": "teacher_kl"}
    usual = {} if "roles" in changes else usual
    whole = {"update.loss": "teacher_kl", "update.teachers": {"mine": {"correct": False}}, **usual, **changes}
    if not said:
        check_recipe(load_recipe("demo", whole), tmp_path)
        return
    with pytest.raises(UsageError) as refused:
        check_recipe(load_recipe("demo", whole), tmp_path)
    assert said in str(refused.value)
