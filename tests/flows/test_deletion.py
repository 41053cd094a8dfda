"""A run is deleted with what it alone has; what it shares stays whole for the others."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradus.data.lake.store import Ref, Store
from gradus.data.runlock import run_lock
from gradus.flows.cli.main import app
from gradus.flows.deletion import delete_run
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.listing import list_runs
from gradus.tasks.runs.run_settings import write_settings
from tests.tasks.made_run import RUN, MadeRun


def test_a_run_goes_with_the_artifacts_that_no_other_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path))
    home = Home(tmp_path)
    made = MadeRun(home).whole()
    shared = next(path.parent for path in sorted((home.lake / "scores").glob("*/_manifest.json")))
    folder = home.runs / "other"
    folder.mkdir()
    write_settings(folder, {"verb": "score"})
    journal = Journal(folder)
    journal.run_started({"run": "other", "verb": "score"})
    journal.stage_reused(stage="score", round=0, purpose="train", output=f"scores/{shared.name}")
    journal.run_finished(status="finished")

    run = CliRunner()
    planned = run.invoke(app, ["runs", "--delete", RUN])
    assert "nothing was deleted, since this can only be asked at a terminal" in str(planned.exception)
    assert "2 checkpoints, 2 evaluations, 4 rollouts, 4 scores" in planned.output
    assert "2 of its artifacts stay because other runs have them too" in planned.output
    assert made.folder.is_dir()

    assert run.invoke(app, ["runs", "--delete", RUN, "--yes"]).exit_code == 0
    assert not made.folder.exists()
    left = sorted(f"{path.parents[1].name}" for path in home.lake.glob("*/*/_manifest.json"))
    assert left == ["checkpoints", "problems", "rollouts", "scores"]  # the policy and problems were given
    assert [each["run"] for each in list_runs(home.runs, home.lake)["runs"]] == ["other"]
    assert "there is no run" in str(run.invoke(app, ["runs", "--delete", RUN, "--yes"]).exception)


def test_what_another_run_began_to_use_after_the_plan_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    MadeRun(home).whole()
    last = max((home.lake / "scores").iterdir(), key=lambda path: path.name)
    (rollouts,) = Store(home.lake).manifest(Ref("scores", last.name)).parents["rollouts"]
    journal = Journal(home.runs / "other")
    write_settings(journal.folder, {"verb": "score"})
    journal.run_started({"run": "other", "verb": "score"})

    with ThreadPoolExecutor(1) as threads, run_lock(last):
        deleting = threads.submit(delete_run, home, RUN)
        while (home.runs / RUN).exists():  # the deletion has made its plan when its run is gone
            time.sleep(0.001)
        journal.stage_reused(stage="score", round=0, purpose="train", output=f"scores/{last.name}")
    assert deleting.result()["staying"] == len([*home.lake.glob("*/*/_manifest.json")]) - 2  # given: policy, problems
    left = {f"{path.parents[1].name}/{path.parent.name}" for path in home.lake.glob("*/*/_manifest.json")}
    assert {f"scores/{last.name}", rollouts} <= left
