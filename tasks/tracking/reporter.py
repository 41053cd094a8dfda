"""The teller: reads a run's journal and tells MLflow. The only importer of mlflow, in a process of its own.

    python -m gradus.tasks.tracking.reporter RUN_FOLDER --owner PID     # follows a living run, ends with it
    python -m gradus.tasks.tracking.reporter RUN_FOLDER --drain         # tells what is there and ends

Told exactly once, whatever is killed: the cursor is saved after every event; the first event after a start is looked up
by its name before anything is created (tag gradus.attempt); a metric carries the time of its journal row, and MLflow
keeps one point for each name, time, step and value. While the tracker is down the journal waits.
Left out on purpose: rollouts beyond a few samples (Parquet holds them all) and the weights (logged by reference).
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
import mlflow.db
from mlflow import MlflowClient
from mlflow.entities import (
    AssessmentSource,
    AssessmentSourceType,
    Dataset,
    DatasetInput,
    InputTag,
    LifecycleStage,
    Metric,
    NoOpSpan,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException

from gradus.data.errors import StageError, in_words
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.tasks.config.redaction import hide, hide_in_logs, hide_in_output
from gradus.tasks.config.settings import Home, traces_per_round, tracking_patience_s
from gradus.tasks.preflight.access import mlflow_words
from gradus.tasks.runs import records
from gradus.tasks.runs.journal import read_metric_rows
from gradus.tasks.runtime.attempt import read_report
from gradus.tasks.tracking.client import artifacts_uri, database, tracker_environment, tracking_uri
from gradus.tasks.tracking.facts import (
    end_files,
    ends,
    in_ms,
    label_of,
    points,
    roles_by_artifact,
    run_page,
    shown,
    title,
    to_parent,
    write_files,
)
from gradus.tasks.tracking.loop import Follower, RefusedError, UnreachableError
from gradus.tasks.tracking.names import (
    MAX_TAG_CHARS,
    METRICS_PER_CALL,
    PARAMS_PER_CALL,
    batches,
    cut,
    flat_params,
    model_name,
)
from gradus.tasks.tracking.report import visible
from gradus.tasks.tracking.state import State, setup_lock, status

EXPERIMENT = "gradus"
_MAX_TRACES_PER_ROUND = 16
_FINAL = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"})
_ENDED = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "cancelled": "KILLED"}


def ensure_database(home: Path) -> str:
    """Create the tracking database, or bring it up to date, and its experiment; return its address."""
    _settle()
    uri = tracking_uri(home)
    if uri.startswith("sqlite:"):
        with setup_lock(database(home).parent), _classified():
            upgrade: Any = mlflow.db.upgrade
            upgrade.callback(uri)
            _experiment(MlflowClient(tracking_uri=uri), home, uri)
    return uri


def drain(folder: Path, wait_s: float = 0.0) -> int:
    """Report to MLflow what is new in a run's journal; return the number of events.

    A reporter that is at it is waited for; LockedError if it takes longer than `wait_s`.
    """
    told = _follower(folder, owner=None).drain(wait_s)
    left = status(folder)
    if left.untold:
        raise StageError(left.sentence, hint="start the tracker first (`gradus ui`), or see MLFLOW_TRACKING_URI")
    return told


class MlflowTeller:
    """Tells MLflow: a parent run for each invocation of a command, a child run for each stage attempt."""

    def __init__(self, folder: Path, home: Home) -> None:
        self._folder = folder
        self._store = Store(home.lake)
        # After a start nobody knows what an earlier teller told beyond the cursor, so things are looked up before they
        # are created, until the first run that is not there: nothing behind it is.
        self._looks_first = True
        self._traces_per_round = min(traces_per_round(), _MAX_TRACES_PER_ROUND)
        self._place = hashlib.sha256(f"{socket.gethostname()}:{folder.resolve()}".encode()).hexdigest()[:16]
        _settle()
        with _classified(opening=True):
            uri = tracking_uri(home.root)
            if uri.startswith("sqlite:"):
                with setup_lock(database(home.root).parent):  # another reporter may be creating it just now
                    is_new = not database(home.root).exists()
                if is_new:
                    ensure_database(home.root)
            mlflow.set_tracking_uri(uri)
            self._client = MlflowClient(tracking_uri=uri)
            self._experiment = _experiment(self._client, home.root, uri)

    def tell(self, event: records.Event, state: State) -> None:
        """Tell one event."""
        kind: str = event["event"]
        with _classified():
            match event["event"]:
                case "run_started":
                    self._run_started(event, state)
                case "stage_started":
                    self._stage_started(event, state)
                case "stage_finished":
                    self._stage_finished(event, state)
                case "stage_reused":
                    report = read_report(self._store, Ref.parse(event["output"]))
                    to_parent(event, event["time"], report.get("metrics", {}), state)
                case "model_alias":
                    self._model_alias(event, state)
                case "run_finished":
                    self._run_finished(event, state)
                case _:  # of a newer version
                    raise RefusedError(f"the journal holds an event {kind!r}, which this version does not know")

    def flush(self, state: State) -> None:
        """Tell the parent's metrics that wait in the state."""
        with _classified():
            for batch in batches([Metric(*row) for row in state.backlog] if state.parent else [], METRICS_PER_CALL):
                self._client.log_batch(state.parent, metrics=batch)

    def close_as_killed(self, state: State) -> None:
        """End the parent and every open child as KILLED: their process is gone."""
        with _classified():
            for run_id in (*(state.runs[attempt] for attempt in state.live), state.parent):
                self._client.set_terminated(run_id, "KILLED")
        state.live, state.parent = {}, ""

    def _run_started(self, event: records.RunStarted, state: State) -> None:
        origin = {
            "prefect.flow_run_id": event.get("prefect_flow_run_id", ""),
            "mlflow.source.git.commit": event.get("git_sha", ""),
        }
        state.begin(event["run"], event["owner"], {key: value for key, value in origin.items() if value})
        tags = {
            "gradus.run": event["run"],
            "gradus.verb": event.get("verb", ""),
            "gradus.invocation": event["invocation"],
            "gradus.place": self._place,
            "gradus.folder": str(self._folder),
            "mlflow.source.name": f"gradus {event.get('verb', '')}",
            **state.origin,
        }
        run_id = self._create("gradus.invocation", event["invocation"], event["run"], in_ms(event["time"]), tags)
        self._close_abandoned(run_id, in_ms(event["time"]))
        params = event.get("params", {})
        self._params(run_id, params)
        self._client.log_text(run_id, json.dumps(params, indent=1), "config.json")
        state.parent = run_id

    def _close_abandoned(self, living: str, time_ms: int) -> None:
        """End runs of this folder that claim to run: whoever held the folder before is gone."""
        query = f"tags.`gradus.place` = '{self._place}' and attributes.status = 'RUNNING'"
        for run in self._client.search_runs([self._experiment], query):
            if run.info.run_id != living:
                self._client.set_terminated(run.info.run_id, "KILLED", end_time=time_ms)

    def _stage_started(self, event: records.StageStarted, state: State) -> None:
        attempt = event["attempt"]
        label = label_of(event)
        tags = {
            "gradus.run": state.run,
            "gradus.place": self._place,
            "gradus.attempt": attempt,
            **{f"gradus.{key}": str(value) for key, value in label.items()},
            "mlflow.source.name": f"gradus {event['stage']}",
            **state.origin,
            **({"mlflow.parentRunId": state.parent} if state.parent else {}),
        }
        run_id = self._create("gradus.attempt", attempt, title(event), in_ms(event["time"]), tags)
        datasets = [self._dataset(ref, roles) for ref, roles in roles_by_artifact(event["inputs"]).items()]
        if datasets:
            self._client.log_inputs(run_id, datasets)
        self._params(run_id, event["config"])
        state.runs[attempt] = run_id
        state.live[attempt] = {**label, "config": event["config"]}

    def _stage_finished(self, event: records.StageFinished, state: State) -> None:
        attempt = event["attempt"]
        live = state.live.get(attempt)
        if live is None:
            raise RefusedError(f"attempt {attempt} ended, but its beginning was not told")
        run_id, ref = state.runs[attempt], Ref.parse(live["output"])
        manifest = self._store.find(ref)
        kept: records.Report = read_report(self._store, ref) if manifest is not None else {}
        rows = read_metric_rows(self._folder, event["metric_bytes"])
        report: records.Report = {**kept, "metrics": rows[-1]["metrics"] if rows else {}}
        metrics = [Metric(*point) for point in points(rows, live["round"])]
        with tempfile.TemporaryDirectory(prefix="gradus-") as name:
            note = write_files(Path(name), self._folder, self._store.path(ref), live, event, report)
            self._client.log_artifacts(run_id, name)
        described = {"mlflow.note.content": note, "gradus.error": event["error"]}
        tags = [RunTag(key, cut(value, MAX_TAG_CHARS)) for key, value in described.items() if value]
        for batch in batches(metrics, METRICS_PER_CALL) if metrics else [[]]:
            self._client.log_batch(run_id, metrics=batch, tags=tags)
        if event["status"] == "finished":
            to_parent(live, event["time"], rows[-1]["metrics"] if rows else {}, state)
            if ref.table == "checkpoints":
                self._checkpoint(ref, run_id, {"round": str(live["round"]), "stage": live["stage"], "run": state.run})
        self._client.set_terminated(run_id, _ENDED[event["status"]], end_time=in_ms(event["time"]))
        del state.live[attempt]
        if live["stage"] == "score" and event["status"] == "finished":
            self._traces(run_id, attempt, live["round"], report.get("samples", []), state)

    def _run_finished(self, event: records.RunFinished, state: State) -> None:
        if not state.parent:
            return
        self.flush(state)
        state.backlog = []
        page, counts = run_page(self._folder, state)
        self._client.log_text(state.parent, page, "summary.md")
        files, tags = end_files(self._folder, counts)
        for path in files:
            self._client.log_artifact(state.parent, str(path))
        self._client.log_batch(state.parent, tags=[RunTag(*tag) for tag in tags.items()])
        for attempt in list(state.live):
            self._client.set_terminated(state.runs[attempt], "KILLED", end_time=in_ms(event["time"]))
        self._client.set_terminated(state.parent, _ENDED[event["status"]], end_time=in_ms(event["time"]))
        state.live, state.parent = {}, ""

    def _traces(self, run_id: str, attempt: str, round_: int, samples: Sequence[records.Sample], state: State) -> None:
        """The best and the worst samples as traces, each with its reward as feedback; a trace costs about 60 ms."""
        key = str(round_)
        chosen = ends(samples, max(0, self._traces_per_round - state.traces.get(key, 0)))
        state.traces[key] = state.traces.get(key, 0) + len(chosen)
        for index, sample in enumerate(chosen):
            name = f"{attempt}:{index}"
            query = f"tags.`gradus.sample` = '{name}'"
            place = [self._experiment]
            if not (self._looks_first and self._client.search_traces(locations=place, filter_string=query)):
                self._trace(run_id, name, sample)

    def _trace(self, run_id: str, name: str, sample: records.Sample) -> None:
        span = mlflow.start_span_no_context(
            str(sample.get("problem_id", "rollout")),
            inputs=shown(sample, ("question", "hint_text", "answer")),
            tags={"gradus.sample": name},
            metadata={"mlflow.sourceRun": run_id},
            experiment_id=self._experiment,
        )
        span.end(outputs=shown(sample, ("completion", "extracted", "error")))
        if isinstance(span, NoOpSpan):
            raise RefusedError(f"no trace could be made of sample {name}")
        source = AssessmentSource(source_type=AssessmentSourceType.CODE, source_id="gradus.score")
        for kind in ("reward", "outcome"):
            if isinstance(value := sample.get(kind), str | float | int):
                mlflow.log_feedback(trace_id=span.trace_id, name=kind, value=value, source=source)

    def _checkpoint(self, ref: Ref, run_id: str, params: Mapping[str, str]) -> str:
        """Log the checkpoint as a model by reference, nothing uploaded or pickled; return the model's id."""
        query = f"tags.`gradus.output` = '{ref}'"
        known = self._client.search_logged_models([self._experiment], filter_string=query)
        if known:
            return known[0].model_id
        model = mlflow.create_external_model(
            name="policy",
            source_run_id=run_id or None,
            params=dict(params),
            tags={"gradus.output": str(ref), "gradus.folder": str(self._store.path(ref))},
            model_type="policy",
            experiment_id=self._experiment,
        )
        return model.model_id

    def _model_alias(self, event: records.ModelAlias, state: State) -> None:
        ref, name = Ref.parse(event["ref"]), model_name(state.run, event["model"])
        model_id = self._checkpoint(ref, state.parent, {"run": state.run})
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        query = f"name = '{name}' and tag.`gradus.output` = '{ref}'"
        versions = self._client.search_model_versions(query)
        version = (
            versions[0]
            if versions
            else self._client.create_model_version(
                name, source=f"models:/{model_id}", run_id=state.parent or None, tags={"gradus.output": str(ref)}
            )
        )
        if event.get("note"):
            self._client.update_model_version(name, version.version, description=event["note"])
        self._client.set_registered_model_alias(name, event["alias"], version.version)

    def _create(self, key: str, name: str, title: str, time_ms: int, tags: Mapping[str, str]) -> str:
        """Create a run, or take up the one that an earlier teller created."""
        if self._looks_first:
            found = self._client.search_runs([self._experiment], f"tags.`{key}` = '{name}'", max_results=1)
            if found:
                self._client.update_run(found[0].info.run_id, status="RUNNING")
                return found[0].info.run_id
            self._looks_first = False
        told = {key: cut(value, MAX_TAG_CHARS) for key, value in tags.items() if value}
        run = self._client.create_run(self._experiment, start_time=time_ms, tags=told, run_name=visible(title, 200))
        return run.info.run_id

    def _params(self, run_id: str, config: JsonObject) -> None:
        for batch in batches([Param(*pair) for pair in flat_params(config).items()], PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=batch)

    def _dataset(self, text: str, roles: list[str]) -> DatasetInput:
        """An input as a dataset by our digest, its role as context; the rows stay where they are."""
        ref = Ref.parse(text)
        manifest = self._store.find(ref)
        profile = json.dumps({"num_rows": manifest.rows}) if manifest else None
        source = json.dumps({"uri": str(self._store.path(ref))})
        dataset = Dataset(name=ref.table, digest=ref.digest, source_type="local", source=source, profile=profile)
        return DatasetInput(dataset, [InputTag("mlflow.data.context", " + ".join(roles))])


def _settle() -> None:
    """Make MLflow quiet, synchronous and quick to give up: this process has the patience."""
    for name, value in tracker_environment().items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow").setLevel(logging.WARNING)


def _experiment(client: MlflowClient, home: Path, uri: str) -> str:
    """The experiment's id; created, or taken out of the bin, where need be."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        artifacts = artifacts_uri(home) if uri.startswith("sqlite:") else None
        return client.create_experiment(EXPERIMENT, artifact_location=artifacts)
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


@contextlib.contextmanager
def _classified(*, opening: bool = False) -> Generator[None]:
    """Tell failures of the tracker (wait and try again) from events that it will never take."""
    try:
        yield
    except MlflowException as error:
        text = mlflow_words(str(mlflow.get_tracking_uri()), error.error_code, str(error))
        if error.error_code in _FINAL and not opening:
            raise RefusedError(text) from error
        raise UnreachableError(text) from error
    except OSError as error:
        raise UnreachableError(hide(str(in_words(error, "a file of MLflow's")))) from error


def _follower(folder: Path, owner: int | None) -> Follower:
    home = Home.from_environment()
    return Follower(folder, lambda: MlflowTeller(folder, home), owner=owner, patience_s=tracking_patience_s())


def main() -> None:
    """Tell one run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m gradus.tasks.tracking.reporter")
    parser.add_argument("folder", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--owner", type=int, help="process whose end ends the telling")
    how.add_argument("--drain", action="store_true", help="tell what is there and end")
    options = parser.parse_args()
    os.nice(10)  # the run itself goes first
    hide_in_output()
    hide_in_logs()
    sys.exit(_follower(options.folder, options.owner).follow())


if __name__ == "__main__":
    main()
