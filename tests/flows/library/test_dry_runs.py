"""What a comparison and a rerun would compute, asked from Python: counted by hand, and nothing is there afterwards."""

import json
from pathlib import Path

import pytest

import gradus
from gradus.flows.loop.foresight import ASKED_FOR
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.config.settings import Home
from tests.tasks.made_run import RUN, MadeRun


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of three problems with four samples each, evaluated on two with two."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    for name, count in (("mine", 3), ("test", 2)):
        rows = [{"question": f"{name} {i} + 1 =", "answer": str(i + 1)} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "own.toml"
    path.write_text(
        f"""
name = "own"
rounds = 2
escalate = []
problems = "{tmp_path}/mine.jsonl"
curate.sample.n = 4
[evaluate]
problems = "{tmp_path}/test.jsonl"
sample.n = 2
report.ks = [1]
"""
    )
    return path


def test_a_comparison_is_foreseen_by_training(recipe: Path, tmp_path: Path) -> None:
    found = gradus.dry_compare([recipe], set=["update.lr=1e-4", "update.lr=2e-4"], budget="rounds=1", seeds=2)
    rows = [(each["method"], each["seed"]) for each in found["trainings"]]
    methods = [f"own update.lr={lr}" for lr in ("1e-4", "2e-4")]
    assert rows == [(method, seed) for seed in (0, 1) for method in methods]
    assert len({each["run"] for each in found["trainings"]}) == 4
    # ingest twice; curate, rollout, score, evaluate twice; a round of curate, rollout, score, difficulty, update
    assert {each["reused"] + each["computed"] for each in found["trainings"]} == {2 + 2 * 4 + 5}
    assert {each["tokens"] for each in found["trainings"]} == {None}
    assert not list((tmp_path / "home").glob("[rl]*/*"))  # neither runs nor lake
    with pytest.raises(gradus.GradusError, match="one training is no comparison"):
        gradus.dry_compare([recipe], budget="rounds=1", seeds=1)


def test_a_rerun_is_foreseen_in_the_rounds_that_are_meant(recipe: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    run = MadeRun(home, recipe=load_recipe(str(recipe)).model_dump(mode="json"))
    problems = run.problems("9", {"a": "1 + 1 ="})
    for at in (1, 2):
        run.batch(problems, at, "train", {"a": (1.0, 0.0)})
    run.finish()
    journal = (run.folder / "events.jsonl").read_bytes()
    again = gradus.dry_rerun(RUN, "rollout", round=1)
    assert [(c["round"], c["why"]) for c in again["calls"] if c["why"] == ASKED_FOR] == [(1, ASKED_FOR)]
    assert (again["run"], again["goes_on"]) == (RUN, True)
    changed = gradus.dry_rerun(gradus.run(RUN), "rollout", set={"top_k": 5}, from_round=2)
    assert (changed["run"] == RUN, changed["goes_on"]) == (False, False)
    # Two evaluations of 2 x 2, and 3 x 4 of round 1; those of round 2 depend on what round 1 measures.
    assert changed["rollouts"] == 2 * 4 + 12
    assert (run.folder / "events.jsonl").read_bytes() == journal
    with pytest.raises(gradus.GradusError, match="had no rollout in round 3"):
        gradus.dry_rerun(RUN, "rollout", round=3)
