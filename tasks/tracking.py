"""The reporter: reads a run's journal and tells MLflow. The only file that imports it.

    python -m tasks.tracking RUN_FOLDER --parent PID     # follows a running flow, ends when the run has ended
    gradus sync RUN                                      # once, for what was missed while the tracker was down

One parent run a Gradus run, one child a stage attempt. A cursor on disk says how far the journal is told; telling an
event twice does nothing the second time, so the reporter may be killed anywhere and started again.
Reused stages get no child of their own: the parent counts them, and their artefact was reported when it was made.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from data.manifest import FILE_NAME
from tasks.journal import EVENTS, read_metrics
from tasks.report import head_csv, sample_html, summary_markdown
from tasks.tracking_client import CURSOR, process_alive

EXPERIMENT = "gradus"
POLL_S = 0.3
MAX_PARAM_CHARS = 6000
MAX_BATCH = 1000
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


def tracking_uri(home: Path) -> str:
    """The store: MLFLOW_TRACKING_URI, or the SQLite file of the home folder."""
    return os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow' / 'mlflow.db'}")


def ensure_database(home: Path) -> str:
    """Create or upgrade the store and the experiment, once; gives the store's URI."""
    (home / "mlflow" / "artifacts").mkdir(parents=True, exist_ok=True)
    uri = tracking_uri(home)
    _experiment(MlflowClient(uri), home)
    return uri


def _experiment(client: MlflowClient, home: Path) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    return client.create_experiment(EXPERIMENT, artifact_location=(home / "mlflow" / "artifacts").as_uri())


class Reporter:
    """Tells MLflow the events of one run folder, in order, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder.parents[1]
        self._cursor: dict[str, Any] = {"offset": 0, "parent": "", "attempts": {}, "reused": 0}
        if (folder / CURSOR).exists():
            self._cursor = json.loads((folder / CURSOR).read_text())
        self._client = MlflowClient(ensure_database(self._home))
        self._experiment = _experiment(self._client, self._home)

    def tell(self) -> list[str]:
        """Tell every whole event that is new; gives their names."""
        told: list[str] = []
        with (self._folder / EVENTS).open("rb") as file:
            file.seek(self._cursor["offset"])
            for line in file:
                if not line.endswith(b"\n"):
                    break
                event = json.loads(line)
                self._handle(event)
                self._cursor["offset"] += len(line)
                self._save()
                told.append(event["event"])
        return told

    def _handle(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "run_started":
                self._run_started(event)
            case "run_finished":
                self._client.set_tag(self._cursor["parent"], "gradus.reused_stages", str(self._cursor["reused"]))
                self._client.set_terminated(self._cursor["parent"], _STATUS[event["status"]])
            case "stage_started":
                self._cursor["attempts"][event["attempt"]] = self._stage_started(event)
            case "stage_finished":
                self._stage_finished(self._cursor["attempts"][event["attempt"]], event)
            case "stage_reused":
                self._cursor["reused"] += 1
            case "model_alias":
                self._alias(event)
            case _:
                raise ValueError(f"the journal has an event that this version does not know: {event['event']}")

    def _run_started(self, event: Mapping[str, Any]) -> None:
        # Attempts of a launch that died were never ended: nobody works on them now, since the run is locked.
        for run_id in self._cursor["attempts"].values():
            if self._client.get_run(run_id).info.status == "RUNNING":
                self._client.set_terminated(run_id, "KILLED")
        tags = {
            "gradus.run": event["run"],
            "gradus.verb": event["verb"],
            "prefect.flow_run_id": event["prefect_flow_run_id"],
            "git.sha": event["git_sha"],
        }
        parent = self._cursor["parent"] or self._found(f"tags.`gradus.parent` = '{event['run']}'")
        if not parent:
            run = self._client.create_run(
                self._experiment, run_name=event["run"], tags={**tags, "gradus.parent": event["run"]}
            )
            parent = run.info.run_id
            self._client.log_batch(parent, params=_params(event["params"]))
        self._cursor["parent"] = parent
        self._client.update_run(parent, status="RUNNING")
        self._client.log_batch(parent, tags=[RunTag(k, v) for k, v in tags.items()])

    def _stage_started(self, event: Mapping[str, Any]) -> str:
        found = self._found(f"tags.`gradus.attempt` = '{event['attempt']}'")
        if found:
            return found
        purpose = "" if event["purpose"] == "train" else f"{event['purpose']}-"
        tags = {
            "mlflow.parentRunId": self._cursor["parent"],
            "gradus.run": self._folder.name,
            "gradus.stage": event["stage"],
            "gradus.round": str(event["round"]),
            "gradus.purpose": event["purpose"],
            "gradus.attempt": event["attempt"],
            "gradus.output": event["output"],
        }
        name = f"{purpose}{event['stage']}-{event['round']}"
        run = self._client.create_run(self._experiment, run_name=name, tags=tags, start_time=_ms(event))
        self._client.log_batch(run.info.run_id, params=_params(event["config"]))
        datasets = [_dataset(role, ref) for role, refs in event["inputs"].items() for ref in refs]
        if datasets:
            self._client.log_inputs(run.info.run_id, datasets)
        return str(run.info.run_id)

    def _stage_finished(self, run_id: str, event: Mapping[str, Any]) -> None:
        run = self._client.get_run(run_id)
        self._log_metrics(run, event)
        self._log_files(run, event)
        if event.get("output_table") == "checkpoints" and event["status"] == "finished":
            self._log_model(run, event)
        self._client.set_terminated(run_id, _STATUS[event["status"]], end_time=_ms(event))

    def _log_metrics(self, run: Run, event: Mapping[str, Any]) -> None:
        if "perf/stage_s" in run.data.metrics:  # the last row's: all rows are there
            return
        rows = [row for row in read_metrics(self._folder) if row["attempt"] == event["attempt"]]
        batch = [
            Metric(name, value, _ms(event), row["step"]) for row in rows for name, value in row["metrics"].items()
        ]
        for start in range(0, len(batch), MAX_BATCH):
            self._client.log_batch(run.info.run_id, metrics=batch[start : start + MAX_BATCH])

    def _log_files(self, run: Run, event: Mapping[str, Any]) -> None:
        tags = run.data.tags
        metrics = {k: v for k, v in self._client.get_run(run.info.run_id).data.metrics.items()}
        name = f"{tags['gradus.stage']} (round {tags['gradus.round']})"
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            facts = {"output": tags["gradus.output"], "status": event["status"], **event["summary"]}
            (folder / "summary.md").write_text(summary_markdown(name, facts, metrics, event.get("error", "")))
            if event["samples"]:
                (folder / "head.csv").write_text(head_csv(event["samples"]))
                (folder / "sample.html").write_text(sample_html(name, event["samples"]))
            manifest = Path(event.get("folder", "")) / FILE_NAME
            if event.get("folder") and manifest.exists():
                shutil.copyfile(manifest, folder / FILE_NAME)
            self._client.log_artifacts(run.info.run_id, str(folder))

    def _log_model(self, run: Run, event: Mapping[str, Any]) -> None:
        """A checkpoint as a logged model: by reference, nothing is uploaded or pickled."""
        output = run.data.tags["gradus.output"]
        if run.data.tags.get("gradus.model"):
            return
        model = self._client.create_logged_model(
            self._experiment,
            name="policy",
            source_run_id=run.info.run_id,
            tags={"gradus.output": output, "gradus.folder": event.get("folder", "")},
            params={"round": run.data.tags["gradus.round"]},
        )
        self._client.finalize_logged_model(model.model_id, "READY")
        self._client.set_tag(run.info.run_id, "gradus.model", model.model_id)

    def _alias(self, event: Mapping[str, Any]) -> None:
        """A registry alias for a checkpoint, as a version that points at its folder in the lake."""
        name = f"gradus-{event['name']}"
        try:
            self._client.get_registered_model(name)
        except MlflowException:
            self._client.create_registered_model(name)
        source = (self._home / "lake" / event["digest"]).as_uri()
        known = [v for v in self._client.search_model_versions(f"name='{name}'") if v.source == source]
        version = known[0] if known else self._client.create_model_version(name, source, self._cursor["parent"])
        self._client.set_registered_model_alias(name, event["alias"], version.version)

    def _found(self, condition: str) -> str:
        runs = self._client.search_runs([self._experiment], condition, max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def _save(self) -> None:
        temporary = self._folder / f".{CURSOR}.tmp"
        temporary.write_text(json.dumps(self._cursor))
        temporary.replace(self._folder / CURSOR)


def drain(folder: Path) -> int:
    """Tell everything that is new, once; the number of events told."""
    return len(Reporter(folder).tell())


def follow(folder: Path, parent: int) -> None:
    """Tell events as they come until the run has ended or the flow's process is gone; patient with a dead tracker."""
    delay_s = POLL_S
    reporter: Reporter | None = None
    while True:
        alive = process_alive(parent)
        try:
            reporter = reporter or Reporter(folder)
            told = reporter.tell()
            delay_s = POLL_S
        except (MlflowException, OSError) as error:
            print(f"the tracker cannot be reached: {error}", flush=True)  # noqa: T201 - goes to the log file
            if not alive:
                return
            told, delay_s = [], min(30.0, delay_s * 2)
        if "run_finished" in told or not alive:
            return
        time.sleep(delay_s)


def _dataset(role: str, ref: str) -> DatasetInput:
    table, _, digest = ref.partition("/")
    source = json.dumps({"uri": f"lake://{ref}"})
    return DatasetInput(Dataset(table, digest, "gradus", source), [InputTag("mlflow.data.context", role)])


def _params(config: Mapping[str, Any]) -> list[Param]:
    return [Param(key, text[:MAX_PARAM_CHARS]) for key, text in list(_flat(config).items())[:MAX_BATCH // 10]]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _ms(event: Mapping[str, Any]) -> int:
    return int(event["time"] * 1000)


def main() -> None:
    """Follow one run folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    follow(options.folder, options.parent)


if __name__ == "__main__":
    main()
