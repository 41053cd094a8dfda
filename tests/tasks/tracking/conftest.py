"""Runs with a journal as the stage adapter writes it, and what MLflow's database holds of each."""

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gradus.data.lake.manifest import REPORT
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs.journal import Journal
from gradus.tasks.tracking.client import database

PROBLEMS = "problems/" + "cd" * 16
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """MLflow's own use of its libraries; ours stays under "warnings are errors"."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*noload.*"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*Any type hint.*"))


@dataclass
class Run:
    """A run's journal, written as the stage adapter writes it, with real artifacts in the lake."""

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
        changed = {"update.lr": ["1e-05", "0.0001"]}
        about = {"run": self.name, "verb": "train", "params": params, "changed": changed, "git_sha": "c0ffee"}
        self.journal.run_started({**about, **facts})

    def artifact(self, table: str, report: dict[str, Any], parents: dict[str, list[str]] | None = None) -> Ref:
        ref = Ref(table, secrets.token_hex(16))
        writer = Store(self.home / "lake").writer(ref)
        writer.write_file("config.json", b"{}")
        writer.write_file(REPORT, json.dumps(report).encode())
        writer.commit(parents=parents or {})
        return ref

    def stage(self, stage: str, round_: int, report: dict[str, Any], status: str = "finished", **more: Any) -> Ref:
        ref = self.artifact({"score": "scores", "update": "checkpoints", "evaluate": "evaluations"}[stage], report)
        attempt = self.begin(stage, round_, ref, more.pop("inputs", None), more.pop("purpose", "train"))
        told = {k: v for k, v in report.items() if k != "samples"} if status == "finished" else None
        self.journal.stage_finished(attempt, status=status, seconds=1.5, report=told, **more)
        return ref

    def begin(
        self, stage: str, round_: int, ref: Ref, inputs: dict[str, list[str]] | None = None, purpose: str = "train"
    ) -> str:
        rollouts = "rollouts/" + "ab" * 16
        return self.journal.stage_started(
            stage=stage,
            round=round_,
            purpose=purpose,
            output=str(ref),
            config={"rewards": [{"name": "numeric"}], "lr": 0.1},
            inputs=inputs or {"rollouts": [rollouts], "again": [rollouts], "problems": [PROBLEMS]},
        )

    def score(self, round_: int) -> Ref:
        return self.stage("score", round_, {"metrics": {"reward/mean": round_ / 10}, "samples": SAMPLES})

    def update(self, round_: int) -> Ref:
        steps = [{"policy/loss": 0.25}, {"policy/loss": 0.125}]
        return self.stage("update", round_, {"metrics": {"policy/loss": 0.1875, "perf/step_s": 2.0}, "steps": steps})

    def evaluate(self, round_: int, policy: Ref, pass_at_1: float) -> Ref:
        """An evaluation of a checkpoint's own rollouts on the first suite."""
        rollouts = self.artifact("rollouts", {}, {"policy": [str(policy)]})
        report = {"metrics": {"eval/heldout/pass_at_1": pass_at_1}}
        inputs = {"rollouts": [str(rollouts)], "problems": [PROBLEMS]}
        return self.stage("evaluate", round_, report, inputs=inputs, purpose="eval")

    def whole(self) -> None:
        self.start()
        for round_ in (1, 2):
            self.score(round_)
            self.evaluate(round_, self.update(round_), round_ / 4)
        self.journal.run_finished(status="finished")

    @contextmanager
    def telling(self, **facts: Any) -> Iterator["Run"]:
        """Start the run; afterwards it is finished, and MLflow is told."""
        self.start(**facts)
        yield self
        self.journal.run_finished(status="finished")
        self.drain()

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
                "select t.tag_value, l.status from logged_model_tags t join logged_models l using (model_id) "
                "where t.tag_key = 'gradus.output' and l.source_run_id in mine order by 1"
            ),
            "outputs": self.ask(
                f"select {name}, t.tag_value, i.step from runs r join inputs i on r.run_uuid = i.source_id "
                "join logged_model_tags t on t.model_id = i.destination_id and t.tag_key = 'gradus.output' "
                "where i.source_type = 'RUN_OUTPUT' and r.run_uuid in mine order by 1, 2"
            ),
            "measured": self.ask(
                "select t.tag_value, m.metric_name, m.metric_value, m.metric_step, m.dataset_name, m.dataset_digest "
                "from logged_model_metrics m join logged_model_tags t on t.model_id = m.model_id "
                "and t.tag_key = 'gradus.output' where m.run_id in mine order by 1, 2"
            ),
            "notes": self.ask(
                f"select {name}, g.value from runs r join tags g using (run_uuid) "
                "where g.key = 'mlflow.note.content' and r.run_uuid in mine order by 1"
            ),
            "files": self.files(),
        }

    def files(self) -> list[tuple[str, str, str]]:
        """Every file of the runs' artifacts: the run's name, the path, the digest of its bytes."""
        found: list[tuple[str, str, str]] = []
        for name, uri in self.ask("select name, artifact_uri from runs where run_uuid in mine"):
            folder = Path(uri.removeprefix("file://"))
            for path in filter(Path.is_file, folder.rglob("*")):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found.append((name, str(path.relative_to(folder)), digest))
        return sorted(found)

    def drain(self) -> int:
        """Tell MLflow all that it was not told; the number of events."""
        from gradus.tasks.tracking.reporter import drain

        return drain(self.folder)


@pytest.fixture
def new_run(mlflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Run]:
    """Make runs by name, in the home folder that the code under test finds in its environment."""
    monkeypatch.setenv("GRADUS_HOME", str(mlflow_home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return lambda name: Run(mlflow_home, name)
