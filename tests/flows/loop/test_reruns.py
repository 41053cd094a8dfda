"""A rerun is checked against what the run did: what there is not is refused with the nearest names."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.loop.reruns import plan_rerun, room_of
from gradus.flows.recipe.course.by_round import stage_config
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.runs.journal import Journal

ROOT = Path(__file__).parents[3]
CALLS = [
    ("ingest", 0, "train"),
    ("curate", 0, "eval"),
    ("score", 0, "eval"),
    ("evaluate", 0, "eval"),
    ("curate", 1, "train"),
    ("score", 1, "train"),
    ("wave", 1, "escalate1"),
    ("score", 1, "hint2"),
    ("update", 1, "train"),
    ("score", 2, "train"),
    ("score", 2, "eval"),
    ("update", 2, "train"),
    ("evaluate", 2, "eval"),
]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs: `mine` of two rounds, and a single verb."""
    for name, body in (
        ("mine", {"verb": "train", "recipe": load_recipe("demo", rounds=2).model_dump(mode="json")}),
        ("score-1", {"verb": "score"}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(body))
    journal = Journal(tmp_path / "mine")
    for stage, index, purpose in CALLS:
        journal.stage_reused(stage=stage, round=index, purpose=purpose, output="scores/00")
    journal.stage_started(stage="difficulty", round=2, purpose="train", output="difficulty/00", config={}, inputs={})
    return tmp_path


def test_a_stage_is_forced_where_the_run_had_it_for_every_purpose(runs: Path) -> None:
    plan = plan_rerun(runs, "mine", "score", [], 1)
    assert (plan.run, set(plan.forced)) == ("mine", {("score", 1, "train"), ("score", 1, "hint2")})
    assert plan.recipe == load_recipe("demo", rounds=2)
    everywhere = plan_rerun(runs, "mine", "score", []).forced
    assert set(everywhere) == {call for call in CALLS if call[0] == "score"}
    assert plan_rerun(runs, "mine", "difficulty", []).forced == (("difficulty", 2, "train"),)  # it only began


def test_waves_of_a_rerun_have_the_room_that_a_budget_left_them(runs: Path) -> None:
    (runs / "bound").mkdir()
    store, journal = Store(runs / "lake"), Journal(runs / "bound")
    for number, (purpose, facts) in enumerate([("refill1", {}), ("refill1", {"fits": 7}), ("refill2", {})]):
        writer = store.writer(Ref("plan", f"{number}" * 32))
        writer.write_table(pa.table({"problem_id": ["a"], "group_id": ["a"], "n": [1], "seed": [1]}))
        writer.commit(config=facts)
        journal.stage_started(stage="wave", round=1, purpose=purpose, output=str(writer.ref), config={}, inputs={})
    room = room_of(store, runs / "bound")
    assert [room(1, "refill1", 9.0), room(1, "refill2", 9.0), room(2, "refill1", 9.0)] == [7, None, None]
    # Trained without a budget since: the last plan counts, and what the lake has lost bounds nothing.
    journal.stage_reused(stage="wave", round=1, purpose="refill1", output="plan/" + "f" * 32)
    assert room_of(store, runs / "bound")(1, "refill1", 9.0) is None
    assert [plan_rerun(runs, "mine", "update", sets, 1).like for sets in ([], ["lr=1e-5"])] == ["mine"] * 2


def test_a_change_is_another_run_whose_recipe_has_it(runs: Path) -> None:
    plan = plan_rerun(runs, "mine", "score", ["item_timeout_s=9", "rewards.0.weight=0.5"], 2)
    assert (plan.run, plan.forced) == (None, ())
    changed = stage_config(plan.recipe, "score", 2, plan.recipe.score)
    assert (changed.item_timeout_s, changed.rewards[0].weight) == (9, 0.5)
    assert stage_config(plan.recipe, "score", 1, plan.recipe.score) == plan.recipe.score


def test_the_update_of_a_role_is_called_by_the_role(runs: Path) -> None:
    sets = ["roles.judge.update.lr=1e-3", 'score.judge.rewards=["verdict"]']
    body = {"verb": "train", "recipe": load_recipe("demo", sets, rounds=2).model_dump(mode="json")}
    (runs / "mine" / "run.json").write_text(json.dumps(body))
    for index in (1, 2):
        Journal(runs / "mine").stage_reused(stage="update", round=index, purpose="judge", output="checkpoints/00")
    assert plan_rerun(runs, "mine", "roles.judge", [], 2).forced == (("update", 2, "judge"),)
    assert ("update", 2, "train") in plan_rerun(runs, "mine", "update", [], 2).forced
    plan = plan_rerun(runs, "mine", "roles.judge", ["update.lr=1e-4"], since=2)
    of = [stage_config(plan.recipe, "roles.judge", index, plan.recipe.roles["judge"]).update for index in (1, 2)]
    assert [each and each.lr for each in of] == [1e-3, 1e-4]


@pytest.mark.parametrize(
    ("run", "stage", "index", "sets", "message"),
    [
        ("mien", "score", None, [], "there is no run mien; did you mean mine"),
        ("zzz", "score", None, [], "there is no run zzz; list them"),
        ("score-1", "score", None, [], "run score-1 is a single `score`"),
        ("mine", "updat", None, [], r"there is no stage 'updat'; did you mean update\?"),
        ("mine", "updat", None, ["lr=1"], r"there is no stage 'updat'; did you mean update\?"),
        ("mine", "train", None, [], "there is no stage 'train'; the stages are ingest"),
        ("mine", "hint", None, [], "run mine had no stage hint; its stages are ingest, curate, wave, score"),
        ("mine", "rollout", None, ["top_p=0.5"], "run mine had no stage rollout"),
        ("mine", "update", 3, [], "run mine had no update in round 3; it had one in rounds 1, 2"),
        ("mine", "update", -1, [], "run mine had no update in round -1"),
        ("mine", "update", 0, ["lr=1"], "run mine had no update in round 0"),
        ("mine", "escalate", 2, [], "run mine had no escalate in round 2; it had one in round 1"),
        ("mine", "score", 5, [], "run mine had no score in round 5; it had one in rounds 0 to 2"),
        ("mine", "curate", 0, ["draw=3"], "run mine had no curate in round 0; it had one in round 1"),
        ("mine", "update", None, ["lrr=1"], r"update: there is no setting lrr; did you mean lr\?"),
        ("mine", "curate", None, ["sample.m=1"], "curate: there is no setting sample.m; did you mean sample.n"),
        ("mine", "curate", None, ["sampel.n=1"], r"curate: there is no setting sampel; did you mean sample"),
        ("mine", "update", None, ["lr=fast"], "update: lr: it must be a number"),
        ("mine", "update", None, ["lr=-1"], "update: lr: it must be greater than 0"),
        ("mine", "update", None, ["lr"], "'lr' is not an assignment"),
        ("mine", "score", None, ["rewards.4.weight=1"], "rewards is a list of 1, and has no entry 4"),
        ("mine", "score", None, ['rewards=[{name="nonesuch"}]'], "there is no reward 'nonesuch'; it is one of"),
        ("mine", "curate", None, ["round=4"], "curate: there is no setting round"),
        ("mine", "evaluate", None, ["suite=x"], "evaluate: there is no setting suite"),
        ("mine", "evaluate", None, ["ks=[1,16]"], "pass@16 needs 16 samples of each problem, and n is 8"),
        ("mine", "update", None, ["aggregation=fixed_length"], "aggregation.length_tokens: it is missing"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(
    runs: Path, run: str, stage: str, index: int | None, sets: list[str], message: str
) -> None:
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=message):
        plan_rerun(runs, run, stage, sets, index)
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_a_change_from_a_round_on_leaves_the_rounds_before(runs: Path) -> None:
    plan = plan_rerun(runs, "mine", "update", ["lr=3e-5"], since=2)
    assert [stage_config(plan.recipe, "update", index, plan.recipe.update).lr for index in (1, 2, 3)] == [
        1.5e-4,
        3e-5,
        3e-5,
    ]
    forced = plan_rerun(runs, "mine", "score", [], since=1).forced
    assert set(forced) == {call for call in CALLS if call[0] == "score" and call[1] >= 1}
    with pytest.raises(UsageError, match="run mine had no update from round 3 on; it had one in rounds 1, 2"):
        plan_rerun(runs, "mine", "update", ["lr=3e-5"], since=3)
    with pytest.raises(UsageError, match="--round and --from-round exclude each other"):
        plan_rerun(runs, "mine", "update", [], 2, 1)


def test_a_rerun_goes_as_far_as_the_run_went_not_as_its_last_command(runs: Path) -> None:
    shorter = {"verb": "train", "recipe": load_recipe("demo", rounds=1).model_dump(mode="json")}
    (runs / "mine" / "run.json").write_text(json.dumps(shorter))
    assert plan_rerun(runs, "mine", "update", [], 2).recipe.rounds == 2


def test_nothing_of_prefect_is_imported_to_check_a_rerun() -> None:
    code = (
        "import sys, gradus.flows.loop.reruns; print([m for m in ('prefect', 'torch', 'mlflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
