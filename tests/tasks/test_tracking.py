"""What MLflow is told, read back from its database with SQL and from its folders, after kills and with a dead tracker."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data.errors import LockedError, StageError
from data.manifest import Manifest
from data.store import Ref, Store
from tasks.journal import EVENTS, Journal, read_events
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
    {"problem_id": "p3", "reward": 0.0, "outcome": "wrong", "question": "1+3=", "completion": "<script>alert(1)</script>"},
]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One MLflow database for all tests: creating it takes most of their time."""
    root = tmp_path_factory.mktemp("gradus-home")
    patch = pytest.MonkeyPatch()
    patch.setenv("GRADUS_HOME", str(root))
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from tasks.tracking import ensure_database

    assert ensure_database(root) == f"sqlite:///{root}/mlflow/mlflow.db"
    yield root
    patch.undo()


@dataclass
class Run:
    """A run's journal, written as the stage adapter writes it, with real artefacts in the lake."""

    home: Path
    name: str
    made: int = 0
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
        self.made += 1
        ref = Ref(table, f"{abs(hash(self.name)) % 16**12:012x}{self.made:04x}")
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
        by_run = "join tags t on t.run_uuid = r.run_uuid and t.key in ('gradus.attempt', 'gradus.invocation')"
        mine = "where r.run_uuid in mine"
        return {
            "runs": self.ask(f"select t.value, r.name, r.status, r.end_time from runs r {by_run} {mine} order by 1"),
            "metrics": self.ask(
                f"select t.value, m.key, m.value, m.step, m.timestamp from metrics m join runs r using (run_uuid) {by_run} "
                f"{mine} order by 1, 2, 4"
            ),
            "params": self.ask(
                f"select t.value, p.key, p.value from params p join runs r using (run_uuid) {by_run} {mine} order by 1, 2"
            ),
            "inputs": self.ask(
                f"select t.value, d.name, d.digest, g.value from inputs i join datasets d on d.dataset_uuid = i.source_id "
                f"join input_tags g on g.input_uuid = i.input_uuid join runs r on r.run_uuid = i.destination_id {by_run} "
                f"{mine} order by 1, 2"
            ),
            "traces": self.ask(
                "select t.value, count(a.assessment_id) from trace_tags t left join assessments a "
                "on a.trace_id = t.request_id where t.key = 'gradus.sample' and t.request_id in (select request_id from "
                "trace_request_metadata where key = 'mlflow.sourceRun' and value in mine) group by 1 order by 1"
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
        ("rollouts", "ab" * 16, "again + rollouts"),
    ]

