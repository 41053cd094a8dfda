"""Rows of MLflow's table of runs: found again by a tag, begun, written, deleted.

A run of ours is one row with a row below it for each attempt of a stage, however many commands it took: its row has the
name of the first invocation in the journal.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag

from gradus.data.records import JsonObject
from gradus.tasks.formats import visible
from gradus.tasks.tracking.client import artifacts_uri
from gradus.tasks.tracking.fold import Point
from gradus.tasks.tracking.names import (
    MAX_TAG_CHARS,
    METRICS_PER_CALL,
    PARAMS_PER_CALL,
    batches,
    cut,
    flat_params,
)
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

    def find(self, key: str, name: str) -> Run | None:
        """Return the newest row with a tag."""
        return next(iter(self._client.search_runs([self._experiment], f"tags.`{key}` = '{name}'", max_results=1)), None)

    def begin(self, key: str, name: str, title: str, time_ms: int, tags: Mapping[str, str]) -> str:
        """Create the row with a tag, or let the one that there is run again, without the error that it ended with.

        It has those other tags that have a value.
        """
        cut_tags = {key: cut(text, MAX_TAG_CHARS) for key, text in {key: name, **tags}.items() if text}
        found = self.find(key, name)
        if found is None:
            shown = visible(title, 200)
            run = self._client.create_run(self._experiment, start_time=time_ms, tags=cut_tags, run_name=shown)
            return run.info.run_id
        run_id = found.info.run_id
        self._client.update_run(run_id, status="RUNNING")
        if _ERROR in found.data.tags:
            self._client.delete_tag(run_id, _ERROR)
        self.tag(run_id, cut_tags)
        return run_id

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set those tags that have a value."""
        cut_tags = [RunTag(key, cut(text, MAX_TAG_CHARS)) for key, text in tags.items() if text]
        self._client.log_batch(run_id, tags=cut_tags)

    def params(self, run_id: str, config: JsonObject) -> None:
        """Log those settings that are not there: MLflow keeps the first value of each for good."""
        there = self._client.get_run(run_id).data.params
        new = [Param(*pair) for pair in flat_params(config).items() if pair[0] not in there]
        for batch in batches(new, PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=batch)

    def note(self, run_id: str, note: str, **tags: str) -> None:
        """Set a row's note, and tags of ours that are not empty."""
        self.tag(run_id, {NOTE: note, **{f"gradus.{name}": text for name, text in tags.items()}})

    def metrics(self, run_id: str, points: Sequence[Point], **about: str) -> None:
        """Log metrics; `about` names the model and the dataset that they are of."""
        for batch in batches([Metric(*point, **about) for point in points], METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=batch)

    def close_abandoned(self, place: str, living: str, time_ms: int) -> None:
        """End rows of a folder that began earlier and claim to run: whoever held the folder before is gone."""
        began = f"attributes.status = 'RUNNING' and attributes.start_time < {time_ms}"
        query = f"tags.`gradus.place` = '{place}' and {began}"
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
