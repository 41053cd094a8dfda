"""What MLflow is told, read back from its database and its folders, after kills and with a dead tracker."""

import json
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.errors import LockedError, StageError
from data.manifest import Manifest
from data.store import Ref, Store
from tasks.journal import EVENTS, Journal
from tasks.tracking_client import database, start_sidecar, status, tracking_uri, wait
from tasks.tracking_state import STATE, State, sole_teller

# MLflow's own use of its libraries; ours stays under "warnings are errors".
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint.*"),
]

SAMPLES = [
    {"problem_id": "p1", "reward": 1.0, "outcome": "correct", "question": "1+1=", "completion": "#### 2"},
    {"problem_id": "p2", "reward": 0.5, "outcome": "wrong", "question": "1+2=", "completion": "maybe"},
    {
        "problem_id": "p3",
        "reward": 0.0,
        "outcome": "wrong",
        "question": "1+3=",
        "completion": "<script>alert(1)</script>",
    },
]


@pytest.fixture
def home(mlflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder that the code under test finds in its environment."""
    monkeypatch.setenv("GRADUS_HOME", str(mlflow_home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return mlflow_home


@dataclass
class Run:
    """A run's journal, written as the stage adapter writes it, with real artefacts in the lake."""

    home: Path
    name: str
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder)

    @property
    def folder(self) -> Path:
        return self.home / "runs" / self.name

    def start(self, **facts: Any) -> None:
        params = {"recipe": {"seed": 7, "update": {"lr": 0.0001}, "long": "x" * 7000}}
        self.journal.run_started({"run": self.name, "verb": "train", "params": params, "git_sha": "c0ffee", **facts})

    def artefact(self, table: str, report: dict[str, Any]) -> Ref:
        ref = Ref(table, secrets.token_hex(16))
        writer = Store(self.home / "lake").writer(ref)
        writer.write_file("config.json", b"{}")
        (writer.folder / "report.json").write_text(json.dumps(report))
        writer.commit(Manifest(table=table, digest=ref.digest, schema_version=1, stage=table))
        return ref

    def stage(self, stage: str, round_: int, report: dict[str, Any], status: str = "finished", **more: Any) -> Ref:
        ref = self.artefact({"score": "scores", "update": "checkpoints"}[stage], report)
        attempt = self.begin(stage, round_, ref)
        told = {k: v for k, v in report.items() if k != "samples"} if status == "finished" else None
        self.journal.stage_finished(attempt, status=status, seconds=1.5, report=told, **more)
        return ref

    def begin(self, stage: str, round_: int, ref: Ref) -> str:
        rollouts = "rollouts/" + "ab" * 16
        return self.journal.stage_started(
            stage=stage,
            round=round_,
            purpose="train",
            output=str(ref),
            config={"rewards": [{"name": "numeric"}], "lr": 0.1},
            inputs={"rollouts": [rollouts], "again": [rollouts], "problems": ["problems/" + "cd" * 16]},
        )

    def score(self, round_: int) -> Ref:
        return self.stage("score", round_, {"metrics": {"reward/mean": round_ / 10}, "samples": SAMPLES})

    def update(self, round_: int) -> Ref:
        steps = [{"policy/loss": 0.25}, {"policy/loss": 0.125}]
        return self.stage("update", round_, {"metrics": {"policy/loss": 0.1875, "perf/step_s": 2.0}, "steps": steps})

    def whole(self) -> None:
        self.start()
        for round_ in (1, 2):
            self.score(round_)
            self.update(round_)
        self.journal.run_finished(status="finished")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """SQL over MLflow's database; the runs of this run only are in the view `mine`."""
        with closing(sqlite3.connect(database(self.home))) as connection:
            tagged = "select run_uuid from tags where key = 'gradus.run' and value = ?"
            found = connection.execute(f"with mine as ({tagged}) {sql}", (self.name,)).fetchall()
        return [tuple(row) for row in found]

    def told(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything MLflow holds of this run that does not differ between two tellings."""
        keys = "'gradus.attempt', 'gradus.invocation'"
        name = f"(select value from tags t where t.run_uuid = r.run_uuid and key in ({keys}))"
        runs = "runs r using (run_uuid) where run_uuid in mine"
        return {
            "runs": self.ask(f"select {name}, name, status, end_time from runs r where run_uuid in mine order by 1"),
            "metrics": self.ask(
                f"select {name}, key, value, step, timestamp from metrics join {runs} order by 1, 2, 4"
            ),
            "params": self.ask(f"select {name}, key, value from params join {runs} order by 1, 2"),
            "inputs": self.ask(
                f"select {name}, d.name, d.digest, g.value from runs r join inputs i on r.run_uuid = i.destination_id "
                "join datasets d on d.dataset_uuid = i.source_id join input_tags g using (input_uuid) "
                "where r.run_uuid in mine order by 1, 2"
            ),
            "traces": self.ask(
                "select t.value, count(a.assessment_id) from trace_tags t "
                "join trace_request_metadata m using (request_id) left join assessments a "
                "on a.trace_id = t.request_id where t.key = 'gradus.sample' "
                "and m.key = 'mlflow.sourceRun' and m.value in mine group by 1 order by 1"
            ),
            "models": self.ask(
                "select t.tag_value from logged_model_tags t join logged_models l using (model_id) "
                "where t.tag_key = 'gradus.output' and l.source_run_id in mine order by 1"
            ),
        }


def drain(run: Run) -> int:
    from tasks.tracking import drain as tell

    return tell(run.folder)


def test_a_run_is_told_with_parent_children_params_inputs_and_metrics(home: Path) -> None:
    run = Run(home, "told-once")
    run.whole()
    assert drain(run) == 10
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


def test_a_child_holds_files_that_people_can_read_and_nothing_runs_in_them(home: Path) -> None:
    run = Run(home, "files")
    run.start()
    ref = run.score(1)
    drain(run)
    uri = run.ask("select artifact_uri from runs where run_uuid in mine and name = 'score-1'")[0][0]
    folder = Path(uri.removeprefix("file://"))
    assert {p.name for p in folder.iterdir()} == {
        "summary.md",
        "head.csv",
        "sample.html",
        "config.json",
        "manifest.json",
    }
    assert "<script" not in (folder / "sample.html").read_text()
    assert "&lt;script&gt;alert(1)" in (folder / "sample.html").read_text()
    manifest = Store(home / "lake").path(ref) / "manifest.json"
    assert (folder / "manifest.json").read_bytes() == manifest.read_bytes()
    assert json.loads((folder / "config.json").read_text()) == {"rewards": [{"name": "numeric"}], "lr": 0.1}
    note = run.ask("select value from tags where key = 'mlflow.note.content' and run_uuid in mine")[0][0]
    assert "reward/mean" in note


def test_the_best_and_the_worst_sample_of_a_round_become_traces_with_feedback(home: Path) -> None:
    run = Run(home, "traces")
    run.start()
    run.score(1)
    run.score(1)
    run.score(2)
    drain(run)
    traces = run.told()["traces"]
    assert [name.rpartition(":")[0].split("-")[:2] for name, _ in traces].count(["score", "1"]) == 2
    assert len(traces) == 4
    assert {feedbacks for _, feedbacks in traces} == {2}


def test_checkpoints_are_models_by_reference_and_an_alias_moves(home: Path) -> None:
    run = Run(home, "models")
    run.start()
    first, second = run.update(1), run.update(2)
    run.journal.model_alias("policy", "champion", str(first))
    run.journal.model_alias("policy", "champion", str(second))
    run.journal.model_alias("policy", "newest", str(second))
    drain(run)
    assert run.told()["models"] == sorted([(str(first),), (str(second),)])
    aliases = run.ask(
        "select a.alias, t.value from registered_model_aliases a join model_version_tags t "
        "on t.name = a.name and t.version = a.version where a.name = 'models-policy' order by 1"
    )
    assert aliases == [("champion", str(second)), ("newest", str(second))]
    uploaded = [p for p in (home / "mlflow" / "artifacts" / "models").rglob("*") if p.is_file() and p.name != "MLmodel"]
    assert uploaded == []


def test_told_again_from_the_start_nothing_is_doubled(home: Path) -> None:
    run = Run(home, "replayed")
    run.whole()
    drain(run)
    before = run.told()
    (run.folder / STATE).write_text("{ torn")
    assert drain(run) == 10
    after = run.told()
    assert after == before
    assert drain(run) == 0


class _Died(BaseException):
    """The process is gone: nothing catches this."""


@pytest.mark.parametrize("seed", [1, 2])
def test_dying_after_any_call_to_mlflow_doubles_and_loses_nothing(home: Path, seed: int) -> None:
    undisturbed = Run(home, f"undisturbed-{seed}")
    undisturbed.whole()
    drain(undisturbed)
    run = Run(home, f"dying-{seed}")
    run.whole()
    random, deaths = np.random.default_rng(seed), 0
    from tasks import tracking

    class MortalClient(tracking.MlflowClient):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("_") or not callable(found):
                return found

            def act(*args: Any, **kwargs: Any) -> Any:
                result = found(*args, **kwargs)
                if random.random() < 0.12:
                    raise _Died
                return result

            return act

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "MlflowClient", MortalClient)
        while status(run.folder).untold:
            try:
                drain(run)
            except _Died:
                deaths += 1
    assert deaths > 3
    assert _sizes(run) == _sizes(undisturbed)


def _sizes(run: Run) -> dict[str, Any]:
    """What two runs with the same events have in common whatever their names and times are."""
    told = run.told()
    return {
        "counts": {kind: len(rows) for kind, rows in told.items()},
        "states": sorted(row[2] for row in told["runs"]),
        "values": sorted(row[1:4] for row in told["metrics"]),
        "feedbacks": [count for _, count in told["traces"]],
    }


def test_a_dead_tracker_loses_nothing_and_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(home, "tracker-down")
    run.whole()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("GRADUS_TRACKING_PATIENCE_S", "0.1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        started = time.monotonic()
        with pytest.raises(StageError, match="gradus sync tracker-down"):
            drain(run)
    assert time.monotonic() - started < 5
    assert status(run.folder).untold == 10
    assert "refused" in status(run.folder).problem
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert drain(run) == 10
    assert status(run.folder).sentence == ""
    assert len(run.told()["runs"]) == 5


def test_the_next_start_closes_what_a_killed_process_left_running(home: Path) -> None:
    run = Run(home, "killed-before")
    run.start()
    run.begin("score", 1, Ref("scores", "ef" * 16))
    drain(run)
    # This process lives, so what it started is not taken for dead.
    assert [row[2] for row in run.told()["runs"]] == ["RUNNING", "RUNNING"]
    run.start()
    run.score(1)
    run.journal.run_finished(status="finished")
    drain(run)
    assert sorted(row[2] for row in run.told()["runs"]) == ["FINISHED", "FINISHED", "KILLED", "KILLED"]


def test_runs_are_closed_even_where_the_run_folder_was_deleted(home: Path) -> None:
    run = Run(home, "folder-gone")
    run.start()
    drain(run)
    shutil.rmtree(run.folder)
    again = Run(home, "folder-gone")
    again.start()
    again.journal.run_finished(status="finished")
    drain(again)
    assert sorted(row[2] for row in again.told()["runs"]) == ["FINISHED", "KILLED"]


def test_a_failed_stage_is_a_failed_run_with_its_sentence(home: Path) -> None:
    run = Run(home, "failed")
    run.start()
    run.stage("score", 1, {"metrics": {"reward/mean": 0.5}}, status="failed", error="6 % of rows could not be judged")
    run.journal.run_finished(status="failed")
    drain(run)
    assert [row[2] for row in run.told()["runs"]] == ["FAILED", "FAILED"]
    assert run.ask("select value from tags where key = 'gradus.error' and run_uuid in mine") == [
        ("6 % of rows could not be judged",)
    ]


def test_a_run_of_reused_stages_is_told_quickly_and_its_curves_are_whole(home: Path) -> None:
    run = Run(home, "reused")
    run.start()
    for round_ in range(100):
        ref = run.artefact("scores", {"metrics": {"reward/mean": round_ / 100}})
        run.journal.stage_reused(stage="score", round=round_, purpose="train", output=str(ref))
    run.journal.run_finished(status="finished")
    started = time.monotonic()
    drain(run)
    assert time.monotonic() - started < 5
    told = run.told()
    assert len(told["runs"]) == 1
    assert [row[2:4] for row in told["metrics"]] == [(round_ / 100, round_) for round_ in range(100)]
    counts = dict(
        run.ask("select key, value from tags where run_uuid in mine and key in ('gradus.ran', 'gradus.reused')")
    )
    assert counts == {"gradus.ran": "0", "gradus.reused": "100"}


def test_an_event_that_can_never_be_told_is_noted_and_the_rest_is_told(home: Path) -> None:
    run = Run(home, "refused")
    run.start()
    with (run.folder / EVENTS).open("a") as file:
        file.write('{"event": "stage_danced", "time": 1.0}\n')
    run.journal.run_finished(status="finished")
    assert drain(run) == 3
    assert "stage_danced" in status(run.folder).sentence
    assert [row[2] for row in run.told()["runs"]] == ["FINISHED"]


def test_two_tellers_of_one_run_exclude_each_other(home: Path) -> None:
    run = Run(home, "two-tellers")
    run.whole()
    with sole_teller(run.folder) as mine:
        assert mine
        with pytest.raises(LockedError, match="two-tellers"):
            drain(run)
    assert drain(run) == 10


def test_a_sidecar_killed_while_it_follows_is_replaced_without_a_trace(home: Path) -> None:
    run = Run(home, "sidecar-killed")
    run.start()
    first = start_sidecar(run.folder)
    run.score(1)
    _until(lambda: len(State.load(run.folder).runs) == 1)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    run.update(1)
    run.journal.run_finished(status="finished")
    second = start_sidecar(run.folder)
    assert "still being told" in wait(second, 0.01).sentence
    second.process.returncode = None
    assert wait(second, 60).sentence == ""
    assert second.process.returncode == 0
    assert (run.folder / "logs" / "tracking.log").read_text() == ""
    told = run.told()
    assert [row[2] for row in told["runs"]] == ["FINISHED"] * 3
    # Two steps of the update, three final metrics in its child and the score's, three in the parent.
    assert len(told["metrics"]) == 2 + 2 + 3
    assert len(told["traces"]) == 2


_FLOW = """
import os, signal, sys
from pathlib import Path
from tasks.journal import Journal
from tasks.tracking_client import start_sidecar
folder = Path(sys.argv[1])
journal = Journal(folder)
journal.run_started({"run": folder.name, "verb": "train", "params": {}})
journal.stage_started(stage="score", round=1, purpose="train", output="scores/" + "ad" * 16, config={}, inputs={})
start_sidecar(folder)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_sidecar_of_a_killed_flow_closes_its_runs_and_ends(home: Path) -> None:
    run = Run(home, "flow-killed")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _FLOW, str(run.folder)], cwd=root, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    _until(lambda: bool(State.load(run.folder).offset) and not State.load(run.folder).parent)
    assert [row[2] for row in run.told()["runs"]] == ["KILLED", "KILLED"]


def _until(holds: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_embedded_database_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("here")) == f"sqlite:///{tmp_path}/here/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert tracking_uri(Path("here")) == "http://tracker:5000"


def test_asking_for_the_state_imports_no_tracker(tmp_path: Path) -> None:
    code = "import sys, tasks.tracking_client, tasks.journal, tasks.report; print('mlflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
