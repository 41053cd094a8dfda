"""A run is deleted with what it alone has; what it shares stays whole for the others."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradus.flows.cli.main import app
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import list_runs
from gradus.tasks.runs.journal import Journal, write_settings
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
    assert planned.exit_code == 0
    assert "2 checkpoints, 2 evaluations, 4 rollouts, 4 scores" in planned.output
    assert "2 of its artifacts stay because other runs have them too" in planned.output
    assert "nothing was deleted; --yes deletes without asking" in planned.output
    assert made.folder.is_dir()

    assert run.invoke(app, ["runs", "--delete", RUN, "--yes"]).exit_code == 0
    assert not made.folder.exists()
    left = sorted(f"{path.parents[1].name}" for path in home.lake.glob("*/*/_manifest.json"))
    assert left == ["checkpoints", "problems", "rollouts", "scores"]  # the policy and problems were given
    assert [each["run"] for each in list_runs(home.runs, home.lake)["runs"]] == ["other"]
    assert "there is no run" in str(run.invoke(app, ["runs", "--delete", RUN, "--yes"]).exception)
