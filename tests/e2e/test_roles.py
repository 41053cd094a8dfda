"""Roles through the real program: a judge behind a server, a frozen critic, and a second model that is trained.

Killed amid the judge's answers and in the second model's update; that model is updated by hand, too.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from gradus.data.lake.schema import ROLLOUTS, SCORES, cast_to_schema
from gradus.data.lake.store import Store
from tests.conftest import Server
from tests.e2e.conftest import Program

KEY = "sk-of-the-judge-1f0e"
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
name = "roles"
seed = 3
rounds = 2
problems = "train.jsonl"
escalate = []
waves = [
    { name = "pairs", template = "{question}|{first}|{second}" },
    { name = "critique", role = "critic" },
    "refine",
    "mine.py:second",
]

[curate]
draw = 6
sample = { n = 3, temperature = 1.0, max_tokens = 80 }

[score]
rewards = ["numeric"]

[score.judge]
rewards = ["verdict"]

[score.second]
rewards = ["numeric"]

[roles.second]
policy = "bundled"

[roles.second.update]
lr = 1e-3
shapes = ["mine.py:against"]

[roles.judge.rollout]
engine = "openai"
server = { url = "URL", tokens = false, api_key_variable = "JUDGE_API_KEY", concurrency = 1 }

[roles.critic]
policy = "bundled"
sample = { n = 1, temperature = 1.0, max_tokens = 20 }

[update]
origin_losses = [{ origin = "refined", loss = "luffy" }]

[evaluate]
problems = "heldout.jsonl"
sample = { n = 1, temperature = 1.0, max_tokens = 40 }
report = { ks = [1] }
"""


COMMAND = ("train", "roles.toml", "--run", "roles")


@pytest.fixture(scope="module")
def new_roles(new_program: Callable[..., Program], judge: Server) -> Callable[[], Program]:
    """Make programs with this recipe in their home, and the judge's key in their environment."""

    def make() -> Program:
        program = new_program(warm=True)
        program.settings = {**program.settings, "JUDGE_API_KEY": KEY}
        (program.home / "mine.py").write_text(MINE)
        (program.home / "roles.toml").write_text(RECIPE.replace("URL", judge.url))
        return program

    return make


@pytest.fixture(scope="module")
def undisturbed(new_roles: Callable[[], Program]) -> tuple[Program, dict[str, Any]]:
    program = new_roles()
    return program, {**program.json(*COMMAND), "made": {n for n in program.manifests() if "train_states" not in n}}


def made_by(program: Program, purpose: str) -> list[str]:
    """The checkpoints of the updates of a model, in order."""
    begun = [e for e in program.events("roles") if e["event"] == "stage_started" and e["stage"] == "update"]
    return [e["output"] for e in begun if e["purpose"] == purpose]


def learned_by(program: Program, checkpoint: str) -> set[str]:
    return set(pq.read_table(program.home / "lake" / checkpoint / "rows.parquet").column("rollout_id").to_pylist())


def test_judged_and_criticised_rows_are_never_learned_from(
    undisturbed: tuple[Program, dict[str, Any]], judge: Server
) -> None:
    program, _ = undisturbed
    everything = program.rows("rollouts/*")
    rows = {row["rollout_id"]: row for row in everything if row["round"] == 1}
    uses = Counter((row["round"], row.get("use")) for row in everything)
    judged = [row for row in rows.values() if row.get("use") == "judge"]
    assert (uses[1, "judge"], uses[2, "judge"], len(judge.asked)) == (18, 18, 36)  # three pairs of each of six groups
    assert judge.logins == {f"Bearer {KEY}"}
    scores = {row["rollout_id"]: row for row in program.rows("scores/*")}
    for row in judged:
        first, second = (rows[name] for name in row["about"])
        assert first["group_id"] == second["group_id"]
        assert scores[row["rollout_id"]]["reward"] == float(len(first["completion"]) <= len(second["completion"]))
    critiques = [row for row in rows.values() if row.get("use") == "critique"]
    wrong = {rows[name]["group_id"] for row in critiques for name in row["about"]}
    assert len(critiques) == len(wrong) > 0
    assert not {row["rollout_id"] for row in critiques} & scores.keys()
    refined = [row for row in rows.values() if row["origin"] == "refined"]
    bare = {row["group_id"]: row["prompt_tokens"] for row in rows.values() if not row.get("plan_id")}
    assert {row["group_id"]: row["trained_prompt_tokens"] for row in refined} == {name: bare[name] for name in wrong}
    learned = learned_by(program, made_by(program, "train")[0])
    assert learned == {name for name, row in rows.items() if not row.get("use")}
    assert len(learned) == 18 + len(refined)


def test_what_a_use_is_like_is_shown_apart_from_training(undisturbed: tuple[Program, dict[str, Any]]) -> None:
    program, _ = undisturbed
    uses = "select coalesce(use, 'learn') as use, count(*) as n, count(reward) as judged from samples"
    found = program.json("sql", f"{uses} where round = 1 and purpose not like 'eval%' group by all order by use")
    num = found["rows"][0][1]  # every critique has its refinement
    theirs = ["second", 24, 24]
    assert found["rows"] == [["critique", num, 0], ["judge", 18, 18], ["learn", 18 + num, 18 + num], theirs]
    named = "select purpose, value from metrics where name = 'reward/mean' and round = 1 and purpose not like 'eval%'"
    means = dict(program.json("sql", named)["rows"])
    assert means.keys() == {"train", "pairs1", "refine1", "second1"}
    for file in (path for folder in ("lake", "runs") for path in (program.home / folder).rglob("*")):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


def test_each_round_samples_with_what_the_last_one_made_of_both(undisturbed: tuple[Program, dict[str, Any]]) -> None:
    program, told = undisturbed
    rows, made = program.rows("rollouts/*"), made_by(program, "second")
    assert (len(made), told["roles"]) == (2, {"second": made[1]})
    theirs = [row for row in rows if row.get("role") == "second"]
    assert {row["origin"] for row in theirs} == {"second"}
    for index, checkpoint in zip((1, 2), made, strict=True):
        second = {row["rollout_id"]: row for row in theirs if row["round"] == index}
        assert learned_by(program, checkpoint) == second.keys()
        assert len(second) == 24
        if index == 2:
            assert {f"checkpoints/{row['policy']}" for row in second.values()} == {made[0]}


def test_the_model_is_what_an_update_makes_of_its_rows_alone(undisturbed: tuple[Program, dict[str, Any]]) -> None:
    program, _ = undisturbed
    store = Store(program.home / "lake")
    rows = [row for row in program.rows("rollouts/*") if row["round"] == 1]
    scores = {row["rollout_id"]: row for row in program.rows("scores/*")}
    own = [row for row in rows if row.get("role") == "second"]
    policys = np.mean([scores[row["rollout_id"]]["reward"] for row in rows if not row.get("use")])
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


def test_killed_among_the_judges_answers_and_in_the_second_models_update_it_ends_in_the_same_artifacts(
    new_roles: Callable[[], Program], undisturbed: tuple[Program, dict[str, Any]]
) -> None:
    whole, told = undisturbed
    sampled = [e for e in whole.events("roles") if e["event"] == "stage_finished" and "tokens" in e["summary"]]
    before = sum(e["summary"]["rows"] for e in sampled[:2])  # the evaluation, and the round's first rollouts
    updates = [
        e["summary"] for e in whole.events("roles") if e["event"] == "stage_finished" and "updates" in e["summary"]
    ]
    made = sum(not each.get("skipped_updates") for each in updates)  # the last is that of the second model
    program = new_roles()
    for fault, where in (
        (f"rollout:after_row#{before + 7}", ("rollout", "pairs1", 1)),
        (f"update:before_checkpoint#{made}", ("update", "second", 2)),
    ):
        code, _, _ = program.run(*COMMAND, GRADUS_FAULT=fault)
        assert code != 0
        last = [e for e in program.events("roles") if e["event"] == "stage_started"][-1]
        assert (last["stage"], last["purpose"], last["round"]) == where
    assert program.json(*COMMAND)["roles"] == told["roles"]
    assert {name for name in program.manifests() if "train_states" not in name} == told["made"]
    texts = [{row["rollout_id"]: row["completion"] for row in each.rows("rollouts/*")} for each in (program, whole)]
    assert texts[0] == texts[1]
    weights = [f"lake/{name}/model.safetensors" for name in told["made"] if name.startswith("checkpoints/")]
    updated = [file for file in weights if (whole.home / file).is_file()]  # not those of an update that was skipped
    assert len(updated) > made
    assert all((program.home / file).read_bytes() == (whole.home / file).read_bytes() for file in updated)
