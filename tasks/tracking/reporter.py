"""The reporter: reads a run's journal and logs it to MLflow, in a process of its own.

    python -m gradus.tasks.tracking.reporter RUN_FOLDER --owner PID     # follows a living run, ends with it
    python -m gradus.tasks.tracking.reporter RUN_FOLDER --drain         # sends what is there and ends

Each event is sent exactly once, whatever is killed: the cursor is saved after every event; the first event after a
start is looked up by its name before anything is created (tag gradus.attempt); a metric carries the time of its journal
row, and MLflow keeps one point for each name, time, step and value; files are logged whole, under the same names. While
the tracker is down the journal waits.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import mlflow.db
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from gradus.data.errors import StageError, in_words
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import is_skipped
from gradus.tasks.config.redaction import hide, hide_in_logs, hide_in_output
from gradus.tasks.config.settings import Home, prices, traces_per_round, tracking_patience_s
from gradus.tasks.host.setting_files import hide_git
from gradus.tasks.preflight.access import mlflow_words
from gradus.tasks.runs import records
from gradus.tasks.runs.account import sentence
from gradus.tasks.runtime.attempt import read_report, with_clock
from gradus.tasks.tracking.client import database, tracker_environment, tracking_uri
from gradus.tasks.tracking.facts import (
    NOT_FINITE,
    count_round,
    count_usage,
    end_files,
    evaluates_at_its_ends,
    in_ms,
    label_of,
    num_not_finite,
    points,
    run_page,
    title,
    to_parent,
    total_points,
    write_files,
)
from gradus.tasks.tracking.lineage import CHECKPOINTS, LoggedLineage, Traces
from gradus.tasks.tracking.loop import Follower, RefusedError, UnreachableError
from gradus.tasks.tracking.names import model_name
from gradus.tasks.tracking.notes import CHANGES_FILE, changes_text, opening, reused_note, run_note, stage_note
from gradus.tasks.tracking.rows import FIRST, Rows, computes, experiment_of, first_invocation, was_measured
from gradus.tasks.tracking.state import Live, State, setup_lock, status

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
            experiment_of(MlflowClient(tracking_uri=uri), home, uri)
    return uri


def drain(folder: Path, wait_s: float = 0.0) -> int:
    """Report to MLflow what is new in a run's journal; return the number of events.

    A reporter that is at it is waited for; LockedError if it takes longer than `wait_s`.
    """
    num_sent = _follower(folder, owner=None).drain(wait_s)
    left = status(folder)
    if left.untold:
        raise StageError(left.sentence, hint="start the tracker first (`gradus ui`), or see MLFLOW_TRACKING_URI")
    return num_sent


def forget(folder: Path) -> int:
    """Mark what MLflow has of a run as deleted; return the number of its runs there. UnreachableError if it is down."""
    return MlflowTeller(folder, Home.from_environment()).forget()


class MlflowTeller:
    """Reports to MLflow: a parent run for each run of ours, a child run for each stage attempt."""

    def __init__(self, folder: Path, home: Home) -> None:
        self._folder = folder
        self._store = Store(home.lake)
        # A previous reporter may have died after creating a run and before saving the cursor: look runs up until the
        # first one that is missing.
        self._looks_first = True
        self._prices = prices()
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
            self._experiment = experiment_of(self._client, home.root, uri)
            self._rows = Rows(self._client, self._experiment)
            self._lineage = LoggedLineage(self._client, self._store, self._experiment)
            self._traces = Traces(self._client, self._experiment, min(traces_per_round(), _MAX_TRACES_PER_ROUND))

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
                    self._stage_reused(event, state)
                case "model_alias":
                    self._model_alias(event, state)
                case "pruned":
                    self._pruned(event)
                case "resumed":
                    self._client.set_tag(state.parent, "gradus.resumed", sentence(event["account"]))
                case "run_finished":
                    self._run_finished(event, state)
                case _:  # of a newer version
                    raise RefusedError(f"the journal holds an event {kind!r}, which this version does not know")
        state.time_ms = in_ms(event["time"])

    def flush(self, state: State) -> None:
        """Tell the parent's metrics that wait in the state."""
        if state.parent:
            with _classified():
                self._rows.metrics(state.parent, [Metric(*point) for point in state.backlog])

    def close_as_killed(self, state: State) -> None:
        """End the parent and every open child as KILLED: their process is gone."""
        ended: records.RunFinished = {
            "event": "run_finished",
            "time": state.time_ms / 1000,
            "status": "killed",
            "error": "the process was killed",
        }
        with _classified():
            self._close(ended, state)
            for run_id in (*(state.runs[attempt] for attempt in state.live), state.parent):
                self._client.set_terminated(run_id, "KILLED")
        state.live, state.parent = {}, ""

    def forget(self) -> int:
        """Mark the rows of the run as deleted; return their number."""
        with _classified(opening=True):
            return self._rows.delete(self._folder.name, self._place)

    def _run_started(self, event: records.RunStarted, state: State) -> None:
        origin = {
            "prefect.flow_run_id": event.get("prefect_flow_run_id", ""),
            "mlflow.source.git.commit": event.get("git_sha", ""),
        }
        first = first_invocation(self._folder)
        row = self._rows.find(FIRST, first)
        known = {key: value for key, value in origin.items() if value}
        state.begin(event["run"], event["owner"], known, resumed=bool(row) and event["invocation"] != first)
        tags = {
            FIRST: first,
            "gradus.run": event["run"],
            "gradus.verb": event.get("verb", ""),
            "gradus.invocation": event["invocation"],
            "gradus.place": self._place,
            "gradus.folder": str(self._folder),
            "mlflow.source.name": f"gradus {event.get('verb', '')}",
            **state.origin,
        }
        run_id = row or self._rows.begin(event["run"], in_ms(event["time"]), tags)
        if row:
            self._rows.go_on(row, tags)
        else:
            self._looks_first = False  # nothing of it is there
        self._rows.close_abandoned(self._place, run_id, in_ms(event["time"]))
        params, changed = event.get("params", {}), event.get("changed")
        recipe = params.get("recipe")
        self._rows.params(run_id, recipe if isinstance(recipe, Mapping) else params, again=bool(row))
        self._client.log_text(run_id, json.dumps(params, indent=1), "config.json")
        if changed is not None:
            self._client.log_text(run_id, changes_text(changed), CHANGES_FILE)
        state.parent, state.begun_ms, state.about = run_id, in_ms(event["time"]), opening(event)
        state.ends_only = evaluates_at_its_ends(recipe)
        self._rows.note(run_id, run_note(state, None, {}))

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
        run_id = self._attempt(attempt, title(event), in_ms(event["time"]), tags)
        self._lineage.log_inputs(run_id, event["inputs"])
        self._problems(event, event["inputs"], state)
        self._rows.params(run_id, event["config"])
        state.runs[attempt] = run_id
        state.live[attempt] = {**label, "config": event["config"], "inputs": dict(event["inputs"])}

    def _problems(self, call: records.Which, inputs: Mapping[str, Sequence[str]], state: State) -> None:
        """Log the problems that a command trains on, and those that it evaluates on, as datasets of its run."""
        roles = {"curate": "training", "evaluate": "evaluation"}
        role = roles.get(call["stage"], "") if call["purpose"] == "train" or call["stage"] == "evaluate" else ""
        new = [ref for ref in inputs.get("problems", ()) if f"{role} {ref}" not in state.datasets]
        if role and new and state.parent:
            self._lineage.log_inputs(state.parent, {role: new})
            state.datasets += [f"{role} {ref}" for ref in new]

    def _stage_finished(self, event: records.StageFinished, state: State) -> None:
        attempt = event["attempt"]
        live = state.live.get(attempt)
        if live is None:
            raise RefusedError(f"attempt {attempt} ended, but its beginning was not told")
        run_id, ref = state.runs[attempt], Ref.parse(live["output"])
        manifest = self._store.find(ref)
        kept: records.Report = read_report(self._store, ref) if manifest is not None else {}
        report = with_clock(kept, event.get("clock", {}), event.get("step_clock", []))
        found = report.get("metrics", {})
        with tempfile.TemporaryDirectory(prefix="gradus-") as name:
            write_files(Path(name), self._store.path(ref), live, event, report)
            self._client.log_artifacts(run_id, name)
        self._rows.note(run_id, stage_note(state.run, live, event), error=event["error"])
        self._curves(run_id, live, report, event["time"], state)
        count_usage(event["summary"], found, state)
        if event["status"] == "finished":
            if not was_measured(self._folder, live, state):
                to_parent(live, event["time"], found, state)
            self._trained(live, (run_id, state.parent), state)
        self._client.set_terminated(run_id, _ENDED[event["status"]], end_time=in_ms(event["time"]))
        del state.live[attempt]
        if live["stage"] == "score" and event["status"] == "finished":
            key = str(live["round"])
            samples, done = kept.get("samples", []), state.traces.get(key, 0)
            state.traces[key] = self._traces.log(run_id, attempt, samples, done, looks_first=self._looks_first)

    def _curves(self, run_id: str, live: Live, report: records.Report, time_s: float, state: State) -> None:
        """Log an attempt's own metrics; those of an evaluation as metrics of its checkpoint too."""
        state.add(NOT_FINITE, sum(map(num_not_finite, (report.get("metrics", {}), *report.get("steps", ())))))
        about, inputs = {"run": state.run, "round": str(live["round"])}, live.get("inputs", {})
        policy = self._lineage.evaluated(inputs, state.parent, about) if live["stage"] == "evaluate" else {}
        self._rows.metrics(run_id, [Metric(*point, **policy) for point in points(report, time_s)])

    def _trained(self, call: records.Label, runs: Sequence[str], state: State) -> None:
        """Log the checkpoint that a call made, if it made one, as a model and as an output of the runs."""
        ref = Ref.parse(call["output"])
        count_round(call, state)
        if ref.table == CHECKPOINTS and not is_skipped(self._store, ref):
            about = {"run": state.run, "round": str(call["round"]), "stage": call["stage"]}
            model_id = self._lineage.checkpoint(ref, runs[0], about)
            for run_id in filter(None, runs):
                self._lineage.log_output(run_id, model_id, call["round"])

    def _stage_reused(self, event: records.StageReused, state: State) -> None:
        if was_measured(self._folder, event, state):
            return
        ref = Ref.parse(event["output"])
        metrics = read_report(self._store, ref).get("metrics", {})
        manifest = self._store.find(ref)
        state.add(NOT_FINITE, num_not_finite(metrics))
        to_parent(event, event["time"], metrics, state)
        self._problems(event, event.get("inputs") or (manifest.parents if manifest else {}), state)
        self._trained(event, (state.parent,), state)

    def _pruned(self, event: records.Pruned) -> None:
        for output in event["outputs"]:
            self._lineage.pruned(Ref.parse(output), event["time"])

    def _model_alias(self, event: records.ModelAlias, state: State) -> None:
        ref = Ref.parse(event["ref"])
        model_id = self._lineage.checkpoint(ref, state.parent, {"run": state.run})
        names = (model_name(state.run, event["model"]), event["alias"])
        self._lineage.name_checkpoint(model_id, ref, names, state.parent, event.get("note", ""))

    def _run_finished(self, event: records.RunFinished, state: State) -> None:
        if not state.parent:
            return
        self.flush(state)
        state.backlog = []
        self._close(event, state)
        for attempt in list(state.live):
            self._client.set_terminated(state.runs[attempt], "KILLED", end_time=in_ms(event["time"]))
        self._client.set_terminated(state.parent, _ENDED[event["status"]], end_time=in_ms(event["time"]))
        state.live, state.parent = {}, ""

    def _close(self, ended: records.RunFinished, state: State) -> None:
        """Log what a run says at the end of a command: summary, totals, note; of one that reused all, a remark."""
        if state.resumed and state.note and not computes(self._folder, state.begun_at, state.offset):
            state.reuses += 1
            at = datetime.fromtimestamp(ended["time"], UTC)
            self._rows.note(state.parent, state.note + reused_note(state.reuses, at), reuses=str(state.reuses))
            return
        state.seconds += max(0.0, ended["time"] - state.begun_ms / 1000)
        page, counts = run_page(self._folder, state)
        self._client.log_text(state.parent, page, "summary.md")
        files, tags = end_files(self._folder)
        for path in files:
            self._client.log_artifact(state.parent, str(path))
        self._rows.tag(state.parent, tags)
        totals = total_points(state, self._prices, in_ms(ended["time"]))
        self._rows.metrics(state.parent, [Metric(*point) for point in totals])
        texts = {name: str(number) for name, number in counts.items()}
        state.note = run_note(state, ended, counts) + self._lineage.compared(self._folder)
        self._rows.note(state.parent, state.note, **texts, error=ended.get("error", ""))

    def _attempt(self, name: str, title: str, time_ms: int, tags: Mapping[str, str]) -> str:
        """Create the run of an attempt, or take up the one that an earlier reporter created."""
        if self._looks_first:
            if found := self._rows.find("gradus.attempt", name):
                self._rows.go_on(found, {})
                return found
            self._looks_first = False
        return self._rows.begin(title, time_ms, tags)


def _settle() -> None:
    """Make MLflow quiet, synchronous and quick to give up: this process has the patience."""
    for name, value in tracker_environment().items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    hide_git()


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
