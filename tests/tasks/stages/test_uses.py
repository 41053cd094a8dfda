"""Rows of other uses: what a wave plans for a judge, and what the next wave reads of it, on tables made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import ColumnError, Lists, Rows
from gradus.data.curation.round import WaveError, round_of
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.wave import run
from tests.tasks.stages.test_wave import USERS

ROLLOUTS = pa.table(
    {
        "rollout_id": ["p0", "p1", "q0", "j0", "j1", "c0"],
        "problem_id": ["p", "p", "q", "p", "q", "p"],
        "group_id": ["p@r3h0", "p@r3h0", "q@r3h0", "p@r3h0.1", "q@r3h0.1", "p@r3h0.2"],
        "completion": ["one", "two", None, "[[A]]", "[[B]]", "it is two"],
        "hint_level": pa.array([1, 1, 0, 0, 0, 0], pa.int32()),
        "hint_text": ["see", "see", None, None, None, None],
        "plan_id": [None, None, None, "p@r3h0.1", "q@r3h0.1", "p@r3h0.2"],
        "use": [None, None, None, "judge", "judge", "critique"],
        "about": [None, None, None, ["p1", "p0"], ["q0", "gone"], ["p0"]],
    }
)
SCORES = pa.table(
    {
        "rollout_id": ["j1", "p0", "p1", "q0", "j0"],
        "problem_id": ["q", "p", "p", "q", "p"],
        "reward": [0.0, 0.5, 1.0, 0.0, 1.0],
        "correct": [None, False, True, False, None],
    }
)
PROBLEMS = pa.table({"problem_id": ["p", "q"], "question": ["p?", "q?"]})
PLAN = pa.table(
    {
        "problem_id": ["p", "q", "p", "q", "p"],
        "group_id": ["p@r3h0", "q@r3h0", "p@r3h0.1", "q@r3h0.1", "p@r3h0.2"],
        "plan_id": [None, None, "p@r3h0.1", "q@r3h0.1", "p@r3h0.2"],
        "n": [2, 1, 1, 1, 1],
    }
)


def planned(
    tmp_path: Path, body: str, needs: str = "None", roles: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], StageResult]:
    """The plan of a user's wave that sees these tables."""
    (tmp_path / "mine.py").write_text(USERS.replace("NEEDS", needs).replace("BODY", body))
    store = Store(tmp_path / "lake")
    tables = {"rollouts": ROLLOUTS, "scores": SCORES, "problems": PROBLEMS, "plan": PLAN}
    inputs = {role: (store.put(role, table),) for role, table in tables.items()}
    config = PlanningConfig.model_validate({"wave": f"{tmp_path / 'mine.py'}:mine", "roles": roles or {}})
    writer = store.writer(Ref("plan", "e" * 32))
    facts = {"round": 3, "wave": 2, "call": 0}
    result = run(StageContext(store, inputs, writer, 13, Warm(), lambda frac, text="": None, facts), config)
    writer.commit()
    return store.read(writer.ref).to_pylist(), result


def test_a_wave_sees_the_rows_that_are_learned_from_and_the_others_beside_them(tmp_path: Path) -> None:
    body = """
    rows, said = round.rows, round.rows.others("judge")
    assert rows["completion"].tolist() == ["one", "two", None] and rows["group"].tolist() == [0, 0, 1]
    assert rows["reward"].tolist() == [0.5, 1.0, 0.0] and len(round.groups) == 2
    assert said["reward"].tolist() == [1.0, 0.0] and said["completion"].tolist() == ["[[A]]", "[[B]]"]
    assert said["about"].tolist() == [[1, 0], [2, -1]] and said["plan.n"].tolist() == [1, 1]
    assert rows.others("critique")["about"].tolist() == [[0]] and np.isnan(rows.others("critique")["reward"]).all()
    assert rows.others("nobody").num_rows == 0 and rows.others("nobody")["about"].shape == (0, 2)
    return None
"""
    assert planned(tmp_path, body)[0] == []


def test_rows_of_a_role_name_what_they_are_about_and_are_sampled_as_the_recipe_says(tmp_path: Path) -> None:
    body = """
    return round.plan(like=[0, 1, 2], role=["judge", "policy", "judge"], use=["judge", "probe", "judge"],
                      about=[[0, 1], [1], [2]], messages=["compare", "ask", "judge"], max_tokens=[None, None, 9])
"""
    roles = {"judge": {"n": 2, "temperature": 0.5, "max_tokens": 7}}
    plan, result = planned(tmp_path, body, roles=roles)
    assert [(row["role"], row["use"], row["about"]) for row in plan] == [
        ("judge", "judge", ["p0", "p1"]),
        (None, "probe", ["p1"]),
        ("judge", "judge", ["q0"]),
    ]
    assert [(row["n"], row["temperature"], row["max_tokens"]) for row in plan] == [
        (2, 0.5, 7),
        (8, 1.0, 96),
        (2, 0.5, 9),
    ]
    assert plan[0]["messages"] == [{"role": "user", "content": "compare"}]
    assert {(row["hint_level"], row["hint_text"]) for row in plan} == {(0, None)}  # a prompt of its own has no hint
    assert result.summary["uses"] == {"judge": ["judge"], "policy": ["probe"]}


def test_several_rows_of_a_plan_may_join_one_group(tmp_path: Path) -> None:
    plan, _ = planned(tmp_path, "return round.plan(like=[0, 1], group=round.rows['group'][[0, 1]], n=1)")
    assert [(row["group_id"], row["plan_id"]) for row in plan] == [("p@r3h0", "p@r3h1"), ("p@r3h0", "p@r3h1.1")]


def test_a_plan_for_the_policy_to_learn_from_has_no_column_more(tmp_path: Path) -> None:
    plan, result = planned(tmp_path, 'return round.plan(like=[0], role="policy", use="learn", n=1)')
    assert {name for name, value in plan[0].items() if value is not None} & {"role", "use", "about"} == set()
    assert "uses" not in result.summary
    assert plan[0]["hint_text"] == "see"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'return round.plan(like=[0], role="jugde", use="judge")',
            r"plans rows of the role jugde, which the recipe lacks; add \[roles.jugde\] .*it has judge",
        ),
        ('return round.plan(like=[0], about=[3], use="judge")', "it names row 3 of 3"),
        ('return round.plan(like=[0, 1], about=[0], use="judge")', "it plans 2 rows and has 1 values of 'about'"),
        ('return round.plan(like=[0], use="a judge")', "'a judge' is no use: names are of small letters"),
        ('return round.plan(like=[0], trained_prompt="mine")', "trained_prompt = 'mine' at problem p; it is problem"),
    ],
)
def test_rows_that_nothing_can_be_sampled_of_are_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(BadInputError) as refused:
        planned(tmp_path, body, roles={"judge": {}})
    assert_match(said, refused.value)


def assert_match(said: str, error: BadInputError) -> None:
    with pytest.raises(BadInputError, match=said):
        raise BadInputError(f"{error.message}; {error.hint}")


def test_a_wave_reads_of_other_uses_what_it_declares(tmp_path: Path) -> None:
    declared = '("judge: reward", "completion")'
    body = 'said = round.rows.others("judge")["reward"]; assert said.tolist() == [1.0, 0.0]; return None'
    assert planned(tmp_path, body, declared)[0] == []
    for number, (odd, message) in enumerate(
        (
            ('round.rows.others("judge")["completion"]', "reads 'completion' without declaring it"),
            ('round.rows.others("value")', "reads rows of use 'value' without declaring it: add \"value: COLUMN\""),
            ('round.rows["reward"]', "reads 'reward' without declaring it"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises((ColumnError, BadInputError), match=message):
            planned(folder, odd, declared)


def test_pairs_within_groups() -> None:
    rows = Rows({"group": np.array([1, 0, 1, 1, 2])})
    one, two = rows.by("group").pairs()
    assert list(zip(one.tolist(), two.tolist(), strict=True)) == [(0, 2), (0, 3), (2, 3)]
    assert [each.tolist() for each in Rows({"group": np.zeros(0, np.int64)}).by("group").pairs()] == [[], []]


def test_rows_about_several_numbers_of_rows_are_lists() -> None:
    rows = pa.table(
        {
            "rollout_id": list("abcd"),
            "problem_id": list("xxxx"),
            "group": [0, 0, 1, 2],
            "use": [None, None, "rank", "rank"],
            "about": [None, None, ["b", "a"], ["a"]],
        }
    )
    view = round_of(rows)
    said = view.rows.others("rank")["about"]
    assert isinstance(said, Lists)
    assert [said[0].tolist(), said[1].tolist()] == [[1, 0], [0]]
    with pytest.raises(WaveError, match="it names row 2 of 2"):
        view.plan(like=[0, 1], about=[[0], [1, 2]])
