"""MLflow's database after a reporter that was killed again and again equals that of an undisturbed one, by table."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradus.tasks.runs.journal import EVENTS
from gradus.tasks.tracking.client import database, status
from tests.tasks.tracking.conftest import PROBLEMS

ROOT = Path(__file__).parents[3]
NUM_KILLS = 8
NAMES = (
    "select run_uuid, value from tags where key in ('gradus.attempt', 'gradus.first_invocation')",
    "select model_id, tag_value from logged_model_tags where tag_key = 'gradus.output'",
    "select 'models:/' || model_id, tag_value from logged_model_tags where tag_key = 'gradus.output'",
    "select dataset_uuid, name || digest from datasets",
    "select request_id, value from trace_tags where key = 'gradus.sample'",
)
TABLES = {
    "runs": "run_uuid, name, status, start_time, end_time, lifecycle_stage from runs",
    "metrics": "run_uuid, key, value, timestamp, step from metrics",
    "latest_metrics": "run_uuid, key, value, timestamp, step from latest_metrics",
    "params": "run_uuid, key, value from params",
    "tags": "run_uuid, key, value from tags where key not in ('gradus.place', 'gradus.folder')",
    "datasets": "name, digest, dataset_source, dataset_profile from datasets",
    "inputs": "source_id, destination_id, source_type, destination_type, step, name, value from inputs "
    "left join input_tags using (input_uuid)",
    "models": "model_id, name, status, lifecycle_stage, model_type, source_run_id from logged_models",
    "model_params": "model_id, param_key, param_value from logged_model_params",
    "model_tags": "model_id, tag_key, tag_value from logged_model_tags",
    "model_metrics": "model_id, metric_name, metric_value, metric_step, metric_timestamp_ms, dataset_digest, run_id "
    "from logged_model_metrics",
    "versions": "name, version, description, source, run_id from model_versions",
    "aliases": "name, alias, version from registered_model_aliases",
    "traces": "request_id, status, trace_name, request_preview, response_preview from trace_info",
    "trace_runs": "request_id, value from trace_request_metadata where key = 'mlflow.sourceRun'",
    "feedback": "trace_id, name, value, source_id from assessments",
    "spans": "trace_id, name, status, json_extract(content, '$.attributes.\"mlflow.spanOutputs\"') from spans",
}


def dump(path: Path) -> dict[str, list[str]]:
    """Everything in a database of MLflow, with the names of things in place of ids drawn at random."""
    with closing(sqlite3.connect(path)) as connection:
        names = {key: name for query in NAMES for key, name in connection.execute(query)}
        read = {table: connection.execute(f"select {query}").fetchall() for table, query in TABLES.items()}
    return {
        table: sorted(repr([names.get(each, each) for each in row]) for row in rows) for table, rows in read.items()
    }


def long_run(run: Any) -> None:
    """Two commands, the first of which failed, with every kind of event."""
    run.start()
    checkpoint = run.update(1)
    for round_ in (1, 2):
        run.score(round_)
    run.evaluate(1, checkpoint, 0.25)
    run.stage("score", 3, {"metrics": {"reward/mean": 0.5}}, status="failed", error="the judge is down")
    run.journal.run_finished(status="failed", error="the judge is down")
    run.start(params={"recipe": {"seed": 7, "rounds": 3}})
    counts = {"planned": 3, "kept": 2, "again": 1, "lost": 0}
    run.journal.resumed({"prompts": counts, "rollouts": counts})
    inputs = {"problems": [PROBLEMS]}
    run.journal.stage_reused(stage="update", round=1, purpose="train", output=str(checkpoint), inputs=inputs)
    for round_ in range(4, 8):
        ref = run.artifact("scores", {"metrics": {"reward/mean": round_ / 10, "verifier/error_frac": 0.0}})
        run.journal.stage_reused(stage="score", round=round_, purpose="train", output=str(ref))
    newer = run.update(2)
    run.evaluate(2, newer, 0.5)
    for name, ref in (("newest", newer), ("champion", checkpoint), ("champion", newer)):
        run.journal.model_alias("policy", name, str(ref), note=f"as {name}")
    run.journal.pruned([str(checkpoint)], 5)
    run.journal.run_finished(status="finished")


def reporter(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gradus.tasks.tracking.reporter", str(folder), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("seed", [3])
def test_a_reporter_killed_at_random_while_the_journal_grows_leaves_the_same_database(
    new_run: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run, rng = new_run("killed-often"), np.random.default_rng(seed)
    long_run(run)
    lines = (run.folder / EVENTS).read_bytes().splitlines(keepends=True)
    databases = {name: tmp_path / f"{name}.db" for name in ("undisturbed", "killed")}
    for path in databases.values():
        shutil.copy(database(run.home), path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{databases['undisturbed']}")
    assert reporter(run.folder, "--drain").wait(300) == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{databases['killed']}")
    folder = tmp_path / run.name
    folder.mkdir()
    sent: list[int] = []
    for end in np.linspace(2, len(lines), NUM_KILLS).astype(int):
        with (folder / EVENTS).open("ab") as file:
            file.writelines(lines[len((folder / EVENTS).read_bytes().splitlines()) : end])
        before = databases["killed"].stat().st_mtime_ns
        process = reporter(folder, "--owner", str(os.getpid()))
        while databases["killed"].stat().st_mtime_ns == before and process.poll() is None:
            time.sleep(0.01)  # MLflow is imported
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        sent.append(status(folder).untold)
    assert any(sent)
    last = reporter(folder, "--drain")
    assert last.wait(300) == 0
    assert status(folder).untold == status(folder).refused == 0
    wanted, found = map(dump, databases.values())
    assert [table for table, rows in wanted.items() if not rows] == []
    for table, rows in wanted.items():
        assert found[table] == rows, table
