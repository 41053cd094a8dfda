"""A second model that a recipe trains beside the policy: through the real program, killed, and updated by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from gradus.data.lake.schema import ROLLOUTS, SCORES, cast_to_schema
from gradus.data.lake.store import Store
from tests.e2e.conftest import Program

MINE = """
import numpy as np
from gradus.components import component

@component("wave", needs=("group", "problem_id"))
def second(round, rng, *, n: int = 4):
    \"\"\"Have a second model answer every problem of the round, too.\"\"\"
    first = np.unique(round.rows["group"], return_index=True)[1]
    return round.plan(like=first, role="second", use="second", n=n)

@component("shape", needs=("reward", "group", "policy: reward"))
def against(rows):
    \"\"\"Reward a row of the second model for what it has more than the policy's mean reward.\"\"\"
    return {"reward": rows["reward"] - rows.others("policy")["reward"].mean()}
"""
RECIPE = """
name = "two"
seed = 3
rounds = 2
problems = "train.jsonl"
escalate = []
waves = ["mine.py:second"]

[curate]
draw = 8
sample = { n = 4, temperature = 1.0, max_tokens = 60 }

[score]
rewards = ["numeric"]

[score.second]
rewards = ["numeric"]

[roles.second]
policy = "bundled"

[roles.second.update]
lr = 1e-3
shapes = ["mine.py:against"]

[evaluate]
problems = "heldout.jsonl"
sample = { n = 1, temperature = 1.0, max_tokens = 40 }
report = { ks = [1] }
"""
COMMAND = ("train", "two.toml", "--run", "two")


@pytest.fixture(scope="module")
def new_pair(new_program: Callable[..., Program]) -> Callable[[], Program]:
    def make() -> Program:
        program = new_program()
        (program.home / "mine.py").write_text(MINE)
        (program.home / "two.toml").write_text(RECIPE)
        return program

    return make


@pytest.fixture(scope="module")
def whole(new_pair: Callable[[], Program]) -> tuple[Program, dict[str, Any]]:
    program = new_pair()
    return program, program.json(*COMMAND)


def made_by(program: Program, purpose: str) -> list[str]:
    """The checkpoints of the updates of a model, in order."""
    begun = [e for e in program.events("two") if e["event"] == "stage_started" and e["stage"] == "update"]
    return [e["output"] for e in begun if e["purpose"] == purpose]


def learned_by(program: Program, checkpoint: str) -> set[str]:
    return set(pq.read_table(program.home / "lake" / checkpoint / "rows.parquet").column("rollout_id").to_pylist())


def test_each_round_samples_with_what_the_last_one_made_of_both(whole: tuple[Program, dict[str, Any]]) -> None:
    program, told = whole
    rows, made = program.rows("rollouts/*"), made_by(program, "second")
    assert (len(made), told["roles"]) == (2, {"second": made[1]})
    theirs = [row for row in rows if row.get("role") == "second"]
    assert {row["origin"] for row in theirs} == {"second"}
    for index, checkpoint, own in zip((1, 2), made, made_by(program, "train"), strict=True):
        second = {row["rollout_id"]: row for row in theirs if row["round"] == index}
        first = {row["rollout_id"] for row in rows if row["round"] == index} - second.keys()
        assert learned_by(program, checkpoint) == second.keys()
        assert learned_by(program, own) == first
        assert (len(second), len(first)) == (32, 32)
        if index == 2:
            assert {f"checkpoints/{row['policy']}" for row in second.values()} == {made[0]}


def test_the_model_is_what_an_update_makes_of_its_rows_alone(whole: tuple[Program, dict[str, Any]]) -> None:
    program, _ = whole
    store = Store(program.home / "lake")
    rows = [row for row in program.rows("rollouts/*") if row["round"] == 1]
    scores = {row["rollout_id"]: row for row in program.rows("scores/*")}
    own = [row for row in rows if row.get("role") == "second"]
    policys = np.mean([scores[row["rollout_id"]]["reward"] for row in rows if row.get("role") != "second"])
    judged = [scores[row["rollout_id"]] for row in own]
    bare = [{name: row[name] for name in row if name not in ("role", "use", "origin")} for row in own]
    said = [
        {**{n: r[n] for n in ("rollout_id", "problem_id", "correct")}, "reward": r["reward"] - policys} for r in judged
    ]
    given = {
        "rollouts": cast_to_schema(pa.Table.from_pylist(bare), ROLLOUTS),
        "scores": cast_to_schema(pa.Table.from_pylist(said), SCORES),
    }
    refs = {name: str(store.put(name, table)) for name, table in given.items()}
    told = program.json(
        "update", "--rollouts", refs["rollouts"], "--scores", refs["scores"],
        "--policy", f"checkpoints/{own[0]['policy']}", "--seed", "3", "--set", "lr=1e-3",
    )  # fmt: skip
    alone, beside = (
        load_file(program.home / "lake" / each / "model.safetensors")
        for each in (told["artifact"], made_by(program, "second")[0])
    )
    for name, values in alone.items():
        np.testing.assert_allclose(values, beside[name], atol=1e-7)


def test_killed_in_the_second_models_update_it_ends_in_the_same_weights(
    new_pair: Callable[[], Program], whole: tuple[Program, dict[str, Any]]
) -> None:
    program = new_pair()
    code, _, _ = program.run(*COMMAND, GRADUS_FAULT="update:before_checkpoint#4")
    assert code != 0
    last = [e for e in program.events("two") if e["event"] == "stage_started"][-1]
    assert (last["stage"], last["purpose"], last["round"]) == ("update", "second", 2)
    told = program.json(*COMMAND)
    assert told["roles"] == whole[1]["roles"]
    for purpose in ("train", "second"):
        made = [made_by(each, purpose) for each in (program, whole[0])]
        assert [*dict.fromkeys(made[0])] == made[1]
        for checkpoint in made[1]:
            file = f"lake/{checkpoint}/model.safetensors"
            assert (program.home / file).read_bytes() == (whole[0].home / file).read_bytes()
