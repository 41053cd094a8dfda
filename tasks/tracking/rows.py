"""Rows of MLflow's table of runs: found again by a tag, begun, written, deleted.

A run of ours is one row with a row below it for each attempt of a stage, however many commands it took: its row has the
name of the first invocation in the journal.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Param, RunTag

from gradus.data.records import JsonObject
from gradus.tasks.formats import visible
from gradus.tasks.runs.journal import event_lines
from gradus.tasks.runs.records import Label
from gradus.tasks.tracking.client import artifacts_uri
from gradus.tasks.tracking.names import (
    MAX_TAG_CHARS,
    METRICS_PER_CALL,
    PARAMS_PER_CALL,
    batches,
    cut,
    flat_params,
)
from gradus.tasks.tracking.state import State
from gradus.tasks.tracking.view import EXPERIMENT, VIEW_TAG, is_current, saved_view

NOTE = "mlflow.note.content"
FIRST = "gradus.first_invocation"
"""The tag of a run's row: the first invocation in its journal."""
_ERROR = "gradus.error"
_PAGE_ROWS = 1000


class Rows:
    """The rows of an experiment."""

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client = client
        self._experiment = experiment

    def find(self, key: str, name: str) -> str:
        """Return the id of the newest row with a tag; empty if there is none."""
        found = self._client.search_runs([self._experiment], f"tags.`{key}` = '{name}'", max_results=1)
        return found[0].info.run_id if found else ""

    def begin(self, title: str, time_ms: int, tags: Mapping[str, str]) -> str:
        """Create a row, with those tags that have a value."""
        cut_tags = {key: cut(value, MAX_TAG_CHARS) for key, value in tags.items() if value}
        run = self._client.create_run(self._experiment, start_time=time_ms, tags=cut_tags, run_name=visible(title, 200))
        return run.info.run_id

    def go_on(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Let a row run again, with those tags that have a value and without the error that it ended with."""
        self._client.update_run(run_id, status="RUNNING")
        if _ERROR in self._client.get_run(run_id).data.tags:
            self._client.delete_tag(run_id, _ERROR)
        self.tag(run_id, tags)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set those tags that have a value."""
        cut_tags = [RunTag(key, cut(text, MAX_TAG_CHARS)) for key, text in tags.items() if text]
        self._client.log_batch(run_id, tags=cut_tags)

    def params(self, run_id: str, config: JsonObject, *, again: bool = False) -> None:
        """Log settings; MLflow keeps the first value of each for good, so `again` logs those that are not there."""
        there = self._client.get_run(run_id).data.params if again else {}
        new = [Param(*pair) for pair in flat_params(config).items() if pair[0] not in there]
        for batch in batches(new, PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=batch)

    def note(self, run_id: str, note: str, **tags: str) -> None:
        """Set a row's note, and tags of ours that are not empty."""
        self.tag(run_id, {NOTE: note, **{f"gradus.{name}": text for name, text in tags.items()}})

    def metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """Log metrics."""
        for batch in batches(metrics, METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=batch)

    def close_abandoned(self, place: str, living: str, time_ms: int) -> None:
        """End rows of a folder that claim to run: whoever held the folder before is gone."""
        query = f"tags.`gradus.place` = '{place}' and attributes.status = 'RUNNING'"
        for run in self._client.search_runs([self._experiment], query):
            if run.info.run_id != living:
                self._client.set_terminated(run.info.run_id, "KILLED", end_time=time_ms)

    def delete(self, run: str, place: str) -> int:
        """Mark the rows of a run, with those of its stages, as deleted; return their number."""
        num_rows, query = 0, f"tags.`gradus.run` = '{run}' and tags.`gradus.place` = '{place}'"
        while found := self._client.search_runs([self._experiment], query, max_results=_PAGE_ROWS):
            for each in found:
                self._client.delete_run(each.info.run_id)
            num_rows += len(found)
        return num_rows


def was_measured(folder: Path, call: Label, state: State) -> bool:
    """Return whether the run's row has what a call measured: an artifact measures the same whenever it is reused."""
    return state.resumed and _named(call) in _ended_calls(folder, state.begun_at)


def first_invocation(folder: Path) -> str:
    """Return the first invocation in a journal; empty if it has none."""
    events = (event for event, _ in event_lines(folder))
    return next((event["invocation"] for event in events if event["event"] == "run_started"), "")


@lru_cache(1)
def _ended_calls(folder: Path, end: int) -> frozenset[str]:
    """The calls that ended well before a place in the journal."""
    begun: dict[str, str] = {}
    found: set[str] = set()
    for event, _ in event_lines(folder, 0, end):
        match event["event"]:
            case "stage_started":
                begun[event["attempt"]] = _named(event)
            case "stage_finished" if event["status"] == "finished" and event["attempt"] in begun:
                found.add(begun[event["attempt"]])
            case "stage_reused":
                found.add(_named(event))
            case _:
                continue
    return frozenset(found)


def _named(call: Label) -> str:
    return f"{call['stage']} {call['round']} {call['purpose']} {call['output']}"


def computes(folder: Path, begin: int, end: int) -> bool:
    """Return whether a command computed anything, or reused nothing: what it did is worth more than a remark."""
    kinds = {event["event"] for event, _ in event_lines(folder, begin, end)}
    return "stage_started" in kinds or "stage_reused" not in kinds


def experiment_of(client: MlflowClient, home: Path, uri: str) -> str:
    """The experiment's id; created, or taken out of the bin, and given its view, where need be."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        artifacts = artifacts_uri(home) if uri.startswith("sqlite:") else None
        found = client.get_experiment(client.create_experiment(EXPERIMENT, artifact_location=artifacts))
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    if not is_current(found.tags.get(VIEW_TAG)):
        client.set_experiment_tag(found.experiment_id, VIEW_TAG, saved_view())
    return found.experiment_id
