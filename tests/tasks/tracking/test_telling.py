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
from gradus.tasks.host.libraries import hide_git
from gradus.tasks.runs.journal import EVENTS, append_line
from gradus.tasks.runs.records import Label
from gradus.tasks.tracking.client import STATE, status, tracking_uri
from gradus.tasks.tracking.facts import REPORT_PAGE, SAMPLE_TABLE
from gradus.tasks.tracking.fold import Fold

Run = Any
NewRun = Callable[[str], Run]


def test_a_run_is_told_with_parent_children_params_inputs_and_metrics(new_run: NewRun) -> None:
    run = new_run("told-once")
    run.whole()
    assert run.drain() == 14
    told = run.told()
    stages = [f"{stage}-{round_}" for round_ in (1, 2) for stage in ("score", "update", "eval-evaluate")]
    names = ("told-once", *stages)
    assert sorted((name, state) for _, name, state, _ in told["runs"]) == sorted((n, "FINISHED") for n in names)
    parent = run.ask("select run_uuid from runs where run_uuid in mine and name = 'told-once'")[0][0]
    children = run.ask("select value from tags where key = 'mlflow.parentRunId' and run_uuid in mine")
    assert children == [(parent,)] * 6
    curve = run.ask(f"select step, value from metrics where key = '2 reward/mean' and run_uuid = '{parent}' order by 1")
    assert curve == [(1, 0.1), (2, 0.2)]
    steps = run.ask(
        "select m.step, m.value from metrics m join runs r using (run_uuid) where r.name = 'update-2' "
        "and m.key = '3 policy/loss' and run_uuid in mine order by 1"
    )
    assert steps == [(0, 0.25), (1, 0.125)]
    params = dict(run.ask(f"select key, value from params where run_uuid = '{parent}'"))
    assert params["update.lr"] == "0.0001"
    assert len(params["long"]) == 6000
    roles = {row[1:] for row in told["inputs"]}
    assert {
        ("problems", "cd" * 16, "problems"),
        ("rollouts", "ab" * 16, "rollouts + again"),
        ("problems", "cd" * 16, "evaluation"),
    } <= roles


def test_ends_are_bars_at_step_0_and_what_is_not_finite_is_left_out_and_counted(new_run: NewRun) -> None:
    with new_run("ends").telling() as run:
        run.update(1)
        bad = run.artifact("scores", {"metrics": {"reward/mean": float("nan"), "reward/std": float("inf")}})
        run.journal.stage_reused(stage="score", round=2, purpose="train", output=str(bad))
    points = {(name, key): (value, step) for _, name, key, value, step in run.ask(POINTS)}
    assert points["update-1", "8 time/step_s"] == (2.0, 0)
    assert points["update-1", "3 policy/loss"] == (0.125, 1)
    assert points["ends", "9 total/num_not_finite"] == (2.0, 0)
    assert points["ends", "9 total/rounds"] == (1.0, 0)
    assert ("ends", "2 reward/mean") not in points


POINTS = """select run_uuid, name, key, value, step from metrics join runs using (run_uuid)
    where run_uuid in mine order by step"""


def test_what_a_command_used_is_summed_and_costs_what_the_user_says(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADUS_CPU_PRICE", "0.36")
    monkeypatch.setenv("GRADUS_GPU_PRICE", "3.6")
    with new_run("dear").telling() as run:
        used = {"perf/cpu_s": 100.0, "perf/gpu_s": 10.0}
        for round_ in (1, 2):
            run.stage("score", round_, {"metrics": used, "summary": {"tokens_generated": 1000}}, status="finished")
            run.stage("update", round_, {"metrics": used, "summary": {"tokens_trained": 300}})
    totals = {key: value for _, name, key, value, _ in run.ask(POINTS) if name == "dear" and key.startswith("9 ")}
    assert totals == {
        "9 total/rounds": 2,
        "9 total/tokens_sampled": 2000,
        "9 total/tokens_trained": 600,
        "9 total/cpu_s": 400,
        "9 total/gpu_s": 40,
        "9 total/cost": pytest.approx(0.04 + 0.04),
    }


def test_a_run_shows_at_most_sixty_metrics_and_those_that_always_are_there_first(new_run: NewRun) -> None:
    with new_run("many").telling() as run:
        own = {f"reward/part{index}": 0.5 for index in range(100)}
        run.stage("score", 1, {"metrics": {**own, "reward/mean": 0.25}})
        run.update(1)
    shown = {key for _, name, key, _, _ in run.ask(POINTS) if name == "many"}
    assert {"2 reward/mean", "3 policy/loss", "9 total/rounds", "2 reward/part0"} <= shown
    assert len(shown) < 60
    assert len([key for _, name, key, _, _ in run.ask(POINTS) if name == "score-1"]) == 101


def fold_of(recipe: dict[str, Any]) -> Fold:
    """A fold after the beginning of a training."""
    fold = Fold()
    params = {"recipe": recipe}
    fold.begin({"event": "run_started", "time": 0.0, "run": "r", "invocation": "i", "owner": {}, "params": params})
    return fold


@pytest.mark.parametrize(("every", "step"), [(0, 0), (2, 4)])
def test_a_gain_is_an_end_value_unless_there_are_evaluations_between(every: int, step: int) -> None:
    fold = fold_of({"evaluate": {"suites": [{"every": every}]}})
    call: Label = {"stage": "evaluate", "round": 4, "purpose": "eval", "output": "evaluations/a"}
    metrics = {"eval/own/gain": 0.25, "eval/own/ci_low": 0.5, "eval/own/pass_at_1": 0.75}
    assert fold.points(call, 1.5, metrics) == [
        ("1 eval/gain", 0.25, 1500, step),
        ("1 eval/pass_ci_low", 0.5, 1500, 4),
        ("1 eval/pass_at_1", 0.75, 1500, 4),
    ]
    assert fold.figures == {"start": 0.75, "pass_at_1": 0.75, "gain": 0.25}


def test_zeros_that_say_nothing_wait_for_a_value_that_does() -> None:
    fold = fold_of({})
    told: list[Any] = []
    means: list[int] = []
    for round_, share in enumerate((0.0, 0.0, 0.25, 0.0), start=1):
        call: Label = {"stage": "score", "round": round_, "purpose": "train", "output": "scores/a"}
        metrics = {"verifier/error_frac": share, "verifier/timeout_frac": 0.0, "reward/mean": 0.0}
        points = fold.points(call, round_, metrics)
        told.append([(name, step, value) for name, value, _, step in points if name != "2 reward/mean"])
        means += [step for name, _, _, step in points if name == "2 reward/mean"]
    name = "7 verifier/error_frac"
    assert told[:2] == [[], []]
    assert told[2] == [(name, 1, 0.0), (name, 2, 0.0), (name, 3, 0.25)]
    assert told[3] == [(name, 4, 0.0)]
    assert means == [1, 2, 3, 4]


def test_a_training_tells_itself_in_five_lines(new_run: NewRun) -> None:
    run = new_run("five-lines")
    recipe = {"name": "demo", "seed": 3, "rounds": 2, "policy": "bundled", "problems": "bundled:train"}
    run.start(params={"recipe": recipe})
    start = run.artifact("checkpoints", {})
    run.evaluate(0, start, 0.125)
    run.update(1)
    run.journal.run_finished(status="finished")
    run.drain()
    notes = dict(run.told()["notes"])
    (note,) = [text for text in notes.values() if "of the recipe" in text]
    lines = note.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("- `train` of the recipe demo: seed 3, rounds 2, policy bundled, problems bundled:train")
    assert lines[1].startswith("- Finished after 1 round in ")
    assert lines[1].endswith("(stages: 2 ran, 0 reused, 0 failed).")
    assert lines[2] == "- pass@1: 0.125 at the start, 0.125 at last."
    assert lines[3] == "- Changed from the defaults: `update.lr 1e-05 → 0.0001`."
    assert lines[4] == "- `gradus train five-lines --rounds 2` resumes; `gradus show five-lines` says more."
    files = {path: digest for name, path, digest in run.files() if name == "five-lines"}
    assert set(files) == {"config.json", "recipe_diff.txt"}


def test_checkpoints_are_outputs_of_their_round_and_evaluations_measure_them(new_run: NewRun) -> None:
    with new_run("outputs").telling() as run:
        first, second = run.update(1), run.update(2)
        run.evaluate(2, second, 0.75)
        run.journal.stage_reused(stage="update", round=3, purpose="train", output=str(first))
    told = run.told()
    # Each on the run of its update and on the run as a whole; the reused one is there already.
    assert sorted(row[1:] for row in told["outputs"]) == sorted([(str(first), 1), (str(second), 2)] * 2)
    assert told["measured"] == [(str(second), "1 eval/pass_at_1", 0.75, 0, "problems", "cd" * 16)]
    import mlflow

    client = mlflow.MlflowClient(tracking_uri(run.home))
    experiment = client.get_experiment_by_name("gradus")
    assert experiment is not None
    best = client.search_logged_models(
        [experiment.experiment_id],
        filter_string=f"metrics.`1 eval/pass_at_1` > 0.5 AND tags.`gradus.output` = '{second}'",
        order_by=[{"field_name": "metrics.1 eval/pass_at_1", "ascending": False, "dataset_name": "problems"}],
    )
    assert [model.tags["gradus.output"] for model in best] == [str(second)]


def test_a_child_holds_files_that_people_can_read_and_nothing_runs_in_them(new_run: NewRun) -> None:
    run = new_run("files")
    run.start()
    ref = run.score(1)
    run.drain()
    uri = run.ask("select artifact_uri from runs where run_uuid in mine and name = 'score-1'")[0][0]
    folder = Path(uri.removeprefix("file://"))
    assert {p.name for p in folder.iterdir()} == {"samples.json", "config.json", "_manifest.json"}
    table = json.loads((folder / SAMPLE_TABLE).read_text())
    assert table["columns"] == ["problem_id", "reward", "outcome", "question", "completion"]
    assert table["data"][2] == ["p3", 0.0, "wrong", "1+3=", "<script>alert(1)</script>"]
    named = run.ask("select value from tags where key = 'mlflow.loggedArtifacts' and run_uuid in mine")
    assert [json.loads(value) for (value,) in named] == [[{"path": SAMPLE_TABLE, "type": "table"}]]
    manifest = Store(run.home / "lake").path(ref) / "_manifest.json"
    assert (folder / "_manifest.json").read_bytes() == manifest.read_bytes()
    assert json.loads((folder / "config.json").read_text()) == {"rewards": [{"name": "numeric"}], "lr": 0.1}
    (note,) = [text for _, text in run.told()["notes"] if "`score`" in text]
    assert note.splitlines()[1] == "- Finished after 1.5 s."
    assert "`gradus why files score`" in note


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
    assert run.told()["models"] == sorted([(str(first), 2), (str(second), 2)])
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


HOSTILE = "![p](http://127.0.0.1:9/x.png) <img src=http://127.0.0.1:9/y> `#### hi` \x1b[31m [link](http://127.0.0.1:9)"


def test_what_a_policy_wrote_is_in_no_note_and_no_markdown_and_in_traces_as_an_object(new_run: NewRun) -> None:
    run = new_run("hostile")
    run.start()
    samples = [{"problem_id": "p1", "reward": 0.0, "outcome": "error", "completion": HOSTILE, "error": HOSTILE}]
    report = {"metrics": {"reward/mean": 0.5}, "samples": samples, "summary": {"first_failed": [f"r1: {HOSTILE}"]}}
    run.stage("score", 1, report)
    gate = f"1 of 1 rows (100.0%) could not be judged, more than max_error_frac 5.0% allows: r1: {HOSTILE}"
    run.stage("score", 2, report, status="failed", error=gate)
    run.journal.run_finished(status="failed", error=gate)
    run.drain()
    uris = run.ask("select artifact_uri from runs where run_uuid in mine")
    assert [path for (uri,) in uris for path in Path(uri.removeprefix("file://")).rglob("*.md")] == []
    notes = [note for _, note in run.told()["notes"]]
    assert len(notes) == 3
    for text in notes:
        assert not [part for part in ("127.0.0.1", "<img", "![", "####", "\x1b") if part in text]
    assert [text for text in notes if "could not be judged, more than max\\_error\\_frac 5.0% allows." in text]
    spans = run.ask(
        "select s.content from spans s join trace_request_metadata m on m.request_id = s.trace_id "
        "where m.key = 'mlflow.sourceRun' and m.value in mine"
    )
    assert spans
    for (content,) in spans:
        attributes = json.loads(content)["attributes"]
        for kind in ("mlflow.spanInputs", "mlflow.spanOutputs"):
            fields = json.loads(attributes.get(kind, "{}"))
            assert all(set(value) == {"lines"} for value in fields.values())


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
    with new_run("left-at-the-end").telling() as run:
        (run.folder / REPORT_PAGE).write_text("<!doctype html>the page")
        (run.folder / SAMPLE_TABLE).write_text('{"columns": ["problem_id"], "data": [["p1"]]}')
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
    append_line(run.folder / EVENTS, b'{"event": "stage_danced", "time": 1.0}', durable=False)
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
    light = "gradus.tasks.tracking.client, gradus.tasks.runs.journal, gradus.tasks.tracking.names"
    code = f"import sys, {light}; print('mlflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_git_is_not_run_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracing.utils.environment import resolve_env_metadata

    canary = tmp_path / "canary"
    for words in (["init", "-q"], ["config", "core.fsmonitor", f"touch {canary}; false"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "git", sys.modules.get("git"))  # is put back
    hide_git()
    resolve_env_metadata.__wrapped__()
    assert not canary.exists()
