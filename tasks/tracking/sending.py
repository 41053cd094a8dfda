"""MLflow's side of the reporter: an event of a journal becomes rows, metrics, datasets, models, traces and files.

MLflow holds everything once, whatever is killed, because sending twice changes nothing: rows, models and traces are
looked up by a tag before they are created; a metric carries the time of its event, and MLflow keeps one point for each
name, time, step and value; datasets it keeps once; files are logged whole, under the same names.
Left out on purpose: rollouts beyond a few samples (Parquet holds them all) and the weights (logged by reference).
"""

import contextlib
import hashlib
import json
import logging
import os
import socket
import tempfile
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import mlflow.db
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from gradus.data.errors import in_words
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import is_skipped
from gradus.data.runlock import LOCK, sole
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.settings import Home, prices, traces_per_round
from gradus.tasks.host.libraries import hide_git
from gradus.tasks.preflight.access import mlflow_words
from gradus.tasks.runs import records
from gradus.tasks.runs.records import sentence
from gradus.tasks.runtime.calls import label
from gradus.tasks.stages.context import read_report, with_clock
from gradus.tasks.tracking import client, facts
from gradus.tasks.tracking.fold import Fold, Point, in_ms, named
from gradus.tasks.tracking.names import METRICS_PER_CALL, model_name
from gradus.tasks.tracking.rows import FIRST, Experiment, experiment_of

_MAX_TRACES_PER_ROUND = 16
_FINAL = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"})
_ENDED = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "cancelled": "KILLED"}


def ensure_database(home: Path) -> str:
    """Create the tracking database, or bring it up to date, and its experiment; return its address."""
    settle()
    uri = client.tracking_uri(home)
    if uri.startswith("sqlite:"):
        # Processes that create it at the same time break it.
        with sole(client.database(home).parent / LOCK), classified():
            upgrade: Any = mlflow.db.upgrade
            upgrade.callback(uri)
            experiment_of(MlflowClient(tracking_uri=uri), home, uri)
    return uri


class Sender:
    """Reports to MLflow: a row for each run of ours, with a row below it for each stage attempt."""

    def __init__(self, folder: Path, home: Home) -> None:
        self._folder = folder
        self._store = Store(home.lake)
        self._prices = prices()
        self._place = hashlib.sha256(f"{socket.gethostname()}:{folder.resolve()}".encode()).hexdigest()[:16]
        self.fold = Fold(min(traces_per_round(), _MAX_TRACES_PER_ROUND))
        self._ids: dict[str, str] = {}
        self._points: list[Point] = []
        settle()
        with classified(opening=True):
            uri = client.tracking_uri(home.root)
            if uri.startswith("sqlite:"):
                database = client.database(home.root)
                with sole(database.parent / LOCK):  # another reporter may be creating it just now
                    is_new = not database.exists()
                if is_new:
                    ensure_database(home.root)
            mlflow.set_tracking_uri(uri)
            self._client = MlflowClient(tracking_uri=uri)
            self._experiment = Experiment(self._client, self._store, experiment_of(self._client, home.root, uri))

    @property
    def waits_for_more(self) -> bool:
        """Return whether points of the run's row wait for those of the next reuses."""
        return 0 < len(self._points) < METRICS_PER_CALL

    def take(self, event: records.Event, *, is_new: bool) -> None:
        """Note an event, and send it if it is new; this may be done again."""
        if event["event"] == "run_started":
            self.fold.begin(event)
        if not self.fold.is_open and event["event"] != "pruned":
            if is_new:
                raise client.RefusedError(f"the journal holds an event {str(event['event'])!r} outside of a command")
            return
        call = self.fold.live.get(event["attempt"]) if event["event"] == "stage_finished" else None
        self.fold.see(event)
        with classified():
            if event["event"] == "stage_finished":
                self._stage_finished(event, call, is_new=is_new)
            elif event["event"] == "stage_reused":
                self._stage_reused(event, is_new=is_new)
            elif event["event"] == "run_finished":
                self._run_finished(event, is_new=is_new)
            elif is_new:
                self._send_new(event)

    def _send_new(self, event: records.Event) -> None:
        kind: str = event["event"]
        match event["event"]:
            case "run_started":
                self._run_started(event)
            case "stage_started":
                self._stage_started(event)
            case "model_alias":
                self._model_alias(event)
            case "pruned":
                for output in event["outputs"]:
                    self._experiment.pruned(Ref.parse(output), event["time"])
            case "resumed":
                self._client.set_tag(self._row, "gradus.resumed", sentence(event["account"]))
            case _:  # of a newer version
                raise client.RefusedError(f"the journal holds an event {kind!r}, which this version does not know")

    def flush(self) -> None:
        """Send the points of the run's row that wait."""
        points, self._points = self._points, []
        if points:
            with classified():
                self._experiment.metrics(self._row, points)

    def close_as_killed(self) -> None:
        """End the open command and its attempts: their process is gone."""
        why, time_s = "the process was killed", self.fold.time_s
        with classified():
            self._run_finished({"event": "run_finished", "time": time_s, "status": "killed", "error": why}, is_new=True)

    def forget(self) -> int:
        """Mark the rows of the run as deleted; return their number."""
        with classified(opening=True):
            return self._experiment.delete(self._folder.name, self._place)

    @property
    def _row(self) -> str:
        return self._id(FIRST, self.fold.first)

    def _id(self, key: str, name: str) -> str:
        if name not in self._ids:
            found = self._experiment.find(key, name)
            if found is None:
                raise client.RefusedError(
                    f"MLflow has no run with the tag {key} = {name}, which it had; was it deleted?"
                )
            self._ids[name] = found.info.run_id
        return self._ids[name]

    def _run_started(self, event: records.RunStarted) -> None:
        tags = {
            "gradus.run": event["run"],
            "gradus.verb": event.get("verb", ""),
            "gradus.invocation": event["invocation"],
            "gradus.place": self._place,
            "gradus.folder": str(self._folder),
            "mlflow.source.name": f"gradus {event.get('verb', '')}",
            **_origin(event),
        }
        time_ms = in_ms(event["time"])
        run_id = self._ids[self.fold.first] = self._experiment.begin(
            FIRST, self.fold.first, event["run"], time_ms, tags
        )
        self._experiment.close_abandoned(self._place, run_id, time_ms)
        params, changed = event.get("params", {}), event.get("changed")
        recipe = params.get("recipe")
        self._experiment.params(run_id, recipe if isinstance(recipe, Mapping) else params)
        self._client.log_text(run_id, json.dumps(params, indent=1), "config.json")
        if changed is not None:
            self._client.log_text(run_id, facts.changes_text(changed), facts.CHANGES_FILE)
        self._experiment.note(run_id, facts.run_note(self.fold, None))

    def _stage_started(self, event: records.StageStarted) -> None:
        attempt = event["attempt"]
        tags = {
            "gradus.run": self.fold.run,
            "gradus.place": self._place,
            **{f"gradus.{key}": str(event[key]) for key in ("stage", "round", "purpose", "output")},
            "mlflow.source.name": f"gradus {event['stage']}",
            "mlflow.parentRunId": self._row,
            **(_origin(self.fold.started) if self.fold.started else {}),
        }
        name = label(event["stage"], event["round"], event["purpose"])
        run_id = self._experiment.begin("gradus.attempt", attempt, name, in_ms(event["time"]), tags)
        self._ids[attempt] = run_id
        self._experiment.log_inputs(run_id, event["inputs"])
        self._problems(event, event["inputs"])
        self._experiment.params(run_id, event["config"])

    def _problems(self, call: records.Label, inputs: Mapping[str, Sequence[str]]) -> None:
        roles = {"curate": "training", "evaluate": "evaluation"}
        role = roles.get(call["stage"], "") if call["purpose"] == "train" or call["stage"] == "evaluate" else ""
        if role and inputs.get("problems"):
            self._experiment.log_inputs(self._row, {role: inputs["problems"]})

    def _stage_finished(self, event: records.StageFinished, call: records.StageStarted | None, *, is_new: bool) -> None:
        if call is None:
            if is_new:
                raise client.RefusedError(f"attempt {event['attempt']} ended, and the journal holds no beginning of it")
            return
        ref = Ref.parse(call["output"])
        kept = self._report(ref)
        report = with_clock(kept, event.get("clock", {}), event.get("step_clock", []))
        of_run = self.fold.finished(call, event, report)
        is_judged = call["stage"] == "score" and event["status"] == "finished"
        traced = self.fold.chosen(call, kept.get("samples", ())) if is_judged else ()
        if not is_new:
            return
        run_id = self._id("gradus.attempt", event["attempt"])
        with tempfile.TemporaryDirectory(prefix="gradus-") as name:
            facts.write_files(Path(name), self._store.path(ref), call, kept.get("samples", ()))
            self._experiment.tag(run_id, facts.tables_tag(list(Path(name).iterdir())))
            self._client.log_artifacts(run_id, name)
        self._experiment.note(run_id, facts.stage_note(self.fold.run, call, event), error=event["error"])
        about, inputs = {"run": self.fold.run, "round": str(call["round"])}, call["inputs"]
        policy = self._experiment.evaluated(inputs, self._row, about) if call["stage"] == "evaluate" else {}
        self._experiment.metrics(run_id, facts.points(report, event["time"]), **policy)
        if event["status"] == "finished":
            self._trained(call, (run_id, self._row))
        self._experiment.traces(run_id, event["attempt"], traced)
        self._points += of_run
        self.flush()
        self._client.set_terminated(run_id, _ENDED[event["status"]], end_time=in_ms(event["time"]))

    def _report(self, ref: Ref) -> records.Report:
        return read_report(self._store, ref) if self._store.find(ref) is not None else {}

    def _trained(self, call: records.Label, runs: Sequence[str]) -> None:
        ref = Ref.parse(call["output"])
        if ref.table == CHECKPOINTS and not is_skipped(self._store, ref):
            about = {"run": self.fold.run, "round": str(call["round"]), "stage": call["stage"]}
            model_id = self._experiment.checkpoint(ref, runs[0], about)
            for run_id in runs:
                self._experiment.log_output(run_id, model_id, call["round"])

    def _stage_reused(self, event: records.StageReused, *, is_new: bool) -> None:
        ref = Ref.parse(event["output"])
        if named(event) in self.fold.measured:
            self.fold.reused(event, event["time"], {})
            return
        of_run = self.fold.reused(event, event["time"], self._report(ref))
        if is_new:
            manifest = self._store.find(ref)
            self._points += of_run
            self._problems(event, event.get("inputs") or (manifest.parents if manifest else {}))
            self._trained(event, (self._row,))

    def _model_alias(self, event: records.ModelAlias) -> None:
        ref = Ref.parse(event["ref"])
        model_id = self._experiment.checkpoint(ref, self._row, {"run": self.fold.run})
        names = (model_name(self.fold.run, event["model"]), event["alias"])
        self._experiment.name_checkpoint(model_id, ref, names, self._row, event.get("note", ""))

    def _run_finished(self, event: records.RunFinished, *, is_new: bool) -> None:
        live = list(self.fold.live)
        remark = self.fold.only_reused
        self.fold.end(event)
        if not remark:
            self.fold.note = facts.run_note(self.fold, event)
        if not is_new:
            return
        self.flush()
        row, time_ms = self._row, in_ms(event["time"])
        note = self.fold.note + self._experiment.compared(self._folder)
        if remark:
            at = datetime.fromtimestamp(event["time"], UTC)
            self._experiment.note(row, note + facts.reused_note(self.fold.reuses, at), reuses=str(self.fold.reuses))
        else:
            files = [path for name in facts.FILES if (path := self._folder / name).is_file()]
            for path in files:
                self._client.log_artifact(row, str(path))
            self._experiment.metrics(row, self.fold.total_points(self._prices, event["time"]))
            counts = {name: str(number) for name, number in self.fold.counts.items()}
            self._experiment.tag(row, facts.tables_tag(files))
            self._experiment.note(row, note, **counts, error=event.get("error", ""))
        for attempt in live:
            self._client.set_terminated(self._id("gradus.attempt", attempt), "KILLED", end_time=time_ms)
        self._client.set_terminated(row, _ENDED[event["status"]], end_time=time_ms)


def _origin(event: records.RunStarted) -> dict[str, str]:
    flow_run, commit = event.get("prefect_flow_run_id", ""), event.get("git_sha", "")
    return {"prefect.flow_run_id": flow_run, "mlflow.source.git.commit": commit}


def settle() -> None:
    """Make MLflow quiet, synchronous and quick to fail: the reporter itself tries again."""
    for name, value in client.tracker_environment().items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    hide_git()


@contextlib.contextmanager
def classified(*, opening: bool = False) -> Generator[None]:
    """Raise UnreachableError for a failure to retry, RefusedError for an event that MLflow will never accept."""
    try:
        yield
    except MlflowException as error:
        text = mlflow_words(str(mlflow.get_tracking_uri()), error.error_code, str(error))
        if error.error_code in _FINAL and not opening:
            raise client.RefusedError(text) from error
        raise client.UnreachableError(text) from error
    except OSError as error:
        raise client.UnreachableError(hide(str(in_words(error, "a file of MLflow's")))) from error
