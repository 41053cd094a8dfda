"""Judges through the real program: one behind a server, one a frozen policy; killed amid the first one's rollouts."""

from collections import Counter
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from tests.conftest import Server
from tests.e2e.conftest import Program

KEY = "sk-of-the-judge-1f0e"
RECIPE = """
name = "judged"
seed = 3
rounds = 1
problems = "train.jsonl"
escalate = []
waves = [
    { name = "pairs", template = "{question}|{first}|{second}" },
    { name = "critique", role = "critic" },
    "refine",
]

[curate]
draw = 6
sample = { n = 3, temperature = 1.0, max_tokens = 80 }

[score]
rewards = ["numeric"]

[score.judge]
rewards = ["verdict"]

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


@pytest.fixture(scope="module")
def new_judged(new_program: Callable[..., Program], judge: Server) -> Callable[[], Program]:
    """Make programs with this recipe in their home, and the judge's key in their environment."""

    def make() -> Program:
        program = new_program()
        program.settings = {**program.settings, "JUDGE_API_KEY": KEY}
        (program.home / "judged.toml").write_text(RECIPE.replace("URL", judge.url))
        return program

    return make


COMMAND = ("train", "judged.toml", "--run", "judged")


@pytest.fixture(scope="module")
def undisturbed(new_judged: Callable[[], Program]) -> Program:
    program = new_judged()
    program.json(*COMMAND)
    return program


def test_judged_and_criticised_rows_are_never_learned_from(undisturbed: Program, judge: Server) -> None:
    rows = {row["rollout_id"]: row for row in undisturbed.rows("rollouts/*") if row["round"] == 1}
    uses = Counter(row.get("use") for row in rows.values())
    judged = [row for row in rows.values() if row.get("use") == "judge"]
    assert uses["judge"] == len(judge.asked) == 6 * 3  # three pairs of each group
    assert judge.logins == {f"Bearer {KEY}"}
    scores = {row["rollout_id"]: row for row in undisturbed.rows("scores/*")}
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
    (made,) = undisturbed.outputs("judged", "update")
    learned = pq.read_table(made / "rows.parquet").column("rollout_id").to_pylist()
    assert sorted(learned) == sorted(name for name, row in rows.items() if not row.get("use"))
    assert len(learned) == 18 + len(refined)


def test_what_a_use_is_like_is_shown_apart_from_training(undisturbed: Program) -> None:
    uses = "select coalesce(use, 'learn') as use, count(*) as n, count(reward) as judged from samples"
    found = undisturbed.json("sql", f"{uses} where round = 1 and purpose not like 'eval%' group by all order by use")
    num = found["rows"][0][1]  # every critique has its refinement
    assert found["rows"] == [["critique", num, 0], ["judge", 18, 18], ["learn", 18 + num, 18 + num]]
    named = "select purpose, value from metrics where name = 'reward/mean' and round = 1 and purpose not like 'eval%'"
    means = dict(undisturbed.json("sql", named)["rows"])
    assert means.keys() == {"train", "pairs1", "refine1"}
    for file in (path for folder in ("lake", "runs") for path in (undisturbed.home / folder).rglob("*")):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


def test_killed_among_the_judges_answers_it_ends_in_the_same_artifacts(
    new_judged: Callable[[], Program], undisturbed: Program
) -> None:
    sampled = [e for e in undisturbed.events("judged") if e["event"] == "stage_finished" and "tokens" in e["summary"]]
    before = sum(e["summary"]["rows"] for e in sampled[:2])  # the evaluation, and the round's first rollouts
    program = new_judged()
    code, _, _ = program.run(*COMMAND, GRADUS_FAULT=f"rollout:after_row#{before + 7}")
    assert code != 0
    last = [e for e in program.events("judged") if e["event"] == "stage_started"][-1]
    assert (last["stage"], last["purpose"]) == ("rollout", "pairs1")
    program.json(*COMMAND)
    assert program.manifests().keys() == undisturbed.manifests().keys()
    name = "rollout_id"
    texts = [{row[name]: row["completion"] for row in each.rows("rollouts/*")} for each in (program, undisturbed)]
    assert texts[0] == texts[1]
