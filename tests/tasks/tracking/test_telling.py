"""What MLflow is told, read back from its database and its folders."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradus.data.lake.store import Store
from gradus.tasks.runs.journal import EVENTS
from gradus.tasks.runs.profiles import keep_trace, trace_of
from gradus.tasks.tracking.client import status, tracking_uri
from gradus.tasks.tracking.facts import REPORT_PAGE, SAMPLE_TABLE
from gradus.tasks.tracking.state import STATE

Run = Any
NewRun = Callable[[str], Run]
# MLflow's own use of its libraries; ours stays under "warnings are errors".
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint.*"),
]


def test_a_run_is_told_with_parent_children_params_inputs_and_metrics(new_run: NewRun) -> None:
    run = new_run("told-once")
    run.whole()
    assert run.drain() == 10
    told = run.told()
    names = ("told-once", "score-1", "update-1", "score-2", "update-2")
    assert sorted((name, state) for _, name, state, _ in told["runs"]) == sorted((n, "FINISHED") for n in names)
    parent = run.ask("select run_uuid from runs where run_uuid in mine and name = 'told-once'")[0][0]
    children = run.ask("select value from tags where key = 'mlflow.parentRunId' and run_uuid in mine")
    assert children == [(parent,)] * 4
    curve = run.ask(f"select step, value from metrics where key = 'reward/mean' and run_uuid = '{parent}' order by 1")
    assert curve == [(1, 0.1), (2, 0.2)]
    steps = run.ask(
        "select m.step, m.value from metrics m join runs r using (run_uuid) where r.name = 'update-2' "
        "and m.key = 'policy/loss' and run_uuid in mine order by 1"
    )
    assert steps == [(0, 0.25), (1, 0.125)]
    params = dict(run.ask(f"select key, value from params where run_uuid = '{parent}'"))
    assert params["recipe.update.lr"] == "0.0001"
    assert len(params["recipe.long"]) == 6000
    assert [row[1:] for row in told["inputs"][:2]] == [
        ("problems", "cd" * 16, "problems"),
        ("rollouts", "ab" * 16, "rollouts + again"),
    ]


def test_a_child_holds_files_that_people_can_read_and_nothing_runs_in_them(new_run: NewRun) -> None:
    run = new_run("files")
    run.start()
    ref = run.score(1)
    run.drain()
    uri = run.ask("select artifact_uri from runs where run_uuid in mine and name = 'score-1'")[0][0]
    folder = Path(uri.removeprefix("file://"))
    assert {p.name for p in folder.iterdir()} == {
        "summary.md",
        "head.csv",
        "sample.html",
        "config.json",
        "_manifest.json",
    }
    assert "<script" not in (folder / "sample.html").read_text()
    assert "&lt;script&gt;alert(1)" in (folder / "sample.html").read_text()
    manifest = Store(run.home / "lake").path(ref) / "_manifest.json"
    assert (folder / "_manifest.json").read_bytes() == manifest.read_bytes()
    assert json.loads((folder / "config.json").read_text()) == {"rewards": [{"name": "numeric"}], "lr": 0.1}
    note = run.ask("select value from tags where key = 'mlflow.note.content' and run_uuid in mine")[0][0]
    assert "reward/mean" in note


def test_the_profile_of_an_attempt_is_one_of_its_files(new_run: NewRun) -> None:
    run = new_run("profiled")
    run.start()
    ref = run.artifact("checkpoints", {})
    attempt = run.begin("update", 1, ref)
    artifact = Store(run.home / "lake").path(ref)
    trace_of(artifact).write_bytes(b"a trace")
    keep_trace(artifact, run.folder, attempt)
    run.journal.stage_finished(attempt, status="finished", seconds=1.5, report={"metrics": {"policy/loss": 0.5}})
    run.drain()
    uri = run.ask("select artifact_uri from runs where run_uuid in mine and name = 'update-1'")[0][0]
    kept = Path(uri.removeprefix("file://")) / f"{attempt}.profile.json.gz"
    assert kept.read_bytes() == b"a trace"


def test_the_best_and_the_worst_sample_of_a_round_become_traces_with_feedback(new_run: NewRun) -> None:
    run = new_run("traces")
    run.start()
    run.score(1)
    run.score(1)
    run.score(2)
    run.drain()
    traces = run.told()["traces"]
    assert [name.rpartition(":")[0].split("-")[:2] for name, _ in traces].count(["score", "1"]) == 2
    assert len(traces) == 4
    assert {feedbacks for _, feedbacks in traces} == {2}


def test_checkpoints_are_models_by_reference_and_an_alias_moves(new_run: NewRun) -> None:
    run = new_run("models")
    run.start()
    first, second = run.update(1), run.update(2)
    run.journal.model_alias("policy", "champion", str(first))
    run.journal.model_alias("policy", "champion", str(second))
    run.journal.model_alias("policy", "newest", str(second))
    run.drain()
    assert run.told()["models"] == sorted([(str(first),), (str(second),)])
    aliases = run.ask(
        "select a.alias, t.value from registered_model_aliases a join model_version_tags t "
        "on t.name = a.name and t.version = a.version where a.name = 'models-policy' order by 1"
    )
    assert aliases == [("champion", str(second)), ("newest", str(second))]
    uploaded = [
        p for p in (run.home / "mlflow" / "artifacts" / "models").rglob("*") if p.is_file() and p.name != "MLmodel"
    ]
    assert uploaded == []


def test_a_failed_stage_is_a_failed_run_with_its_sentence(new_run: NewRun) -> None:
    run = new_run("failed")
    run.start()
    run.stage("score", 1, {"metrics": {"reward/mean": 0.5}}, status="failed", error="6 % of rows could not be judged")
    run.journal.run_finished(status="failed")
    run.drain()
    assert [row[2] for row in run.told()["runs"]] == ["FAILED", "FAILED"]
    assert run.ask("select value from tags where key = 'gradus.error' and run_uuid in mine") == [
        ("6 % of rows could not be judged",)
    ]


def test_a_run_of_reused_stages_is_told_quickly_and_its_curves_are_whole(new_run: NewRun) -> None:
    run = new_run("reused")
    run.start()
    for round_ in range(100):
        ref = run.artifact("scores", {"metrics": {"reward/mean": round_ / 100}})
        run.journal.stage_reused(stage="score", round=round_, purpose="train", output=str(ref))
    run.journal.run_finished(status="finished")
    started = time.monotonic()
    run.drain()
    assert time.monotonic() - started < 5
    told = run.told()
    assert len(told["runs"]) == 1
    assert [row[2:4] for row in told["metrics"]] == [(round_ / 100, round_) for round_ in range(100)]
    counts = dict(
        run.ask("select key, value from tags where run_uuid in mine and key in ('gradus.ran', 'gradus.reused')")
    )
    assert counts == {"gradus.ran": "0", "gradus.reused": "100"}


def test_what_the_end_of_a_training_left_is_a_file_of_its_run_and_told_twice_no_more(new_run: NewRun) -> None:
    run = new_run("left-at-the-end")
    run.start()
    (run.folder / REPORT_PAGE).write_text("<!doctype html>the page")
    (run.folder / SAMPLE_TABLE).write_text('{"columns": ["problem_id"], "data": [["p1"]]}')
    run.journal.run_finished(status="finished")
    run.drain()
    uri = run.ask("select artifact_uri from runs where run_uuid in mine")[0][0]
    folder = Path(uri.removeprefix("file://"))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {REPORT_PAGE, SAMPLE_TABLE} <= first.keys()
    assert first[REPORT_PAGE] == b"<!doctype html>the page"
    (run.folder / STATE).unlink()
    run.drain()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    (named,) = run.ask("select value from tags where key = 'mlflow.loggedArtifacts' and run_uuid in mine")
    assert json.loads(named[0]) == [{"path": SAMPLE_TABLE, "type": "table"}]
    import mlflow

    mlflow.set_tracking_uri(tracking_uri(run.home))
    run_id, experiment = run.ask("select run_uuid, experiment_id from runs where run_uuid in mine")[0]
    loaded = mlflow.MlflowClient().load_table(str(experiment), SAMPLE_TABLE, run_ids=[run_id])
    assert loaded.to_dict("records") == [{"problem_id": "p1"}]


def test_an_event_that_can_never_be_told_is_noted_and_the_rest_is_told(new_run: NewRun) -> None:
    run = new_run("refused")
    run.start()
    with (run.folder / EVENTS).open("a") as file:
        file.write('{"event": "stage_danced", "time": 1.0}\n')
    run.journal.run_finished(status="finished")
    assert run.drain() == 3
    assert "stage_danced" in status(run.folder).sentence
    assert [row[2] for row in run.told()["runs"]] == ["FINISHED"]


def test_the_embedded_database_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("here")) == f"sqlite:///{tmp_path}/here/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert tracking_uri(Path("here")) == "http://tracker:5000"


def test_asking_for_the_state_imports_no_tracker(tmp_path: Path) -> None:
    light = "gradus.tasks.tracking.client, gradus.tasks.runs.journal, gradus.tasks.tracking.report"
    code = f"import sys, {light}; print('mlflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
