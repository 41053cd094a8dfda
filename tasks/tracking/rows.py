"""Objects of MLflow: rows of its table of runs, tables as datasets, checkpoints as models, samples as traces.

A run of ours is one row with a row below it for each attempt of a stage, however many commands it took: its row has the
name of the first invocation in the journal. What MLflow would keep twice is looked up by a tag before it is created.
MLflow renders a text of a trace as Markdown, remote pictures included, and an object as JSON.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient, entities
from mlflow.exceptions import MlflowException
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.models.utils import get_external_mlflow_model_spec
from mlflow.tracing.constant import SpanAttributeKey
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL

from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.tasks.formats import visible
from gradus.tasks.runs.records import Sample
from gradus.tasks.tracking import names
from gradus.tasks.tracking.client import RefusedError, artifacts_uri
from gradus.tasks.tracking.facts import COMPARISON, links_note, shown
from gradus.tasks.tracking.fold import Point

NOTE = "mlflow.note.content"
FIRST = "gradus.first_invocation"
"""The tag of a run's row: the first invocation in its journal."""
_ERROR, _OUTPUT = "gradus.error", "gradus.output"
_PAGE_ROWS = 1000
_ASKED = ("question", "hint_text", "answer")
_ANSWERED = ("completion", "extracted", "error")
_RUN = "mlflow.sourceRun"
"""Metadata that a trace has once it is whole: MLflow writes the span before, with a tag that the span names."""
_SOURCE = entities.AssessmentSource(source_type=entities.AssessmentSourceType.CODE, source_id="gradus.score")


class Experiment:
    """Rows, lineage and traces of an experiment; what MLflow would keep twice is looked up before it is created."""

    def __init__(self, client: MlflowClient, store: Store, identifier: str) -> None:
        self._client = client
        self._store = store
        self._id = identifier

    def find(self, key: str, name: str) -> entities.Run | None:
        """Return the newest row with a tag."""
        return next(iter(self._client.search_runs([self._id], f"tags.`{key}` = '{name}'", max_results=1)), None)

    def begin(self, key: str, name: str, title: str, time_ms: int, tags: Mapping[str, str]) -> str:
        """Create the row with a tag, or let the one that there is run again, without the error that it ended with.

        It has those other tags that have a value.
        """
        cut_tags = {key: names.cut(text, names.MAX_TAG_CHARS) for key, text in {key: name, **tags}.items() if text}
        found = self.find(key, name)
        if found is None:
            shown = visible(title, 200)
            run = self._client.create_run(self._id, start_time=time_ms, tags=cut_tags, run_name=shown)
            return run.info.run_id
        run_id = found.info.run_id
        self._client.update_run(run_id, status="RUNNING")
        if _ERROR in found.data.tags:
            self._client.delete_tag(run_id, _ERROR)
        self.tag(run_id, cut_tags)
        return run_id

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set those tags that have a value."""
        cut_tags = [entities.RunTag(key, names.cut(text, names.MAX_TAG_CHARS)) for key, text in tags.items() if text]
        self._client.log_batch(run_id, tags=cut_tags)

    def params(self, run_id: str, config: JsonObject) -> None:
        """Log those settings that are not there: MLflow keeps the first value of each for good."""
        there = self._client.get_run(run_id).data.params
        new = [entities.Param(*pair) for pair in names.flat_params(config).items() if pair[0] not in there]
        for batch in names.batches(new, names.PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=batch)

    def note(self, run_id: str, note: str, **tags: str) -> None:
        """Set a row's note, and tags of ours that are not empty."""
        self.tag(run_id, {NOTE: note, **{f"gradus.{name}": text for name, text in tags.items()}})

    def metrics(self, run_id: str, points: Sequence[Point], **about: str) -> None:
        """Log metrics; `about` names the model and the dataset that they are of."""
        for batch in names.batches([entities.Metric(*point, **about) for point in points], names.METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=batch)

    def close_abandoned(self, place: str, living: str, time_ms: int) -> None:
        """End rows of a folder that began earlier and claim to run: whoever held the folder before is gone."""
        began = f"attributes.status = 'RUNNING' and attributes.start_time < {time_ms}"
        for run in self._client.search_runs([self._id], f"tags.`gradus.place` = '{place}' and {began}"):
            if run.info.run_id != living:
                self._client.set_terminated(run.info.run_id, "KILLED", end_time=time_ms)

    def delete(self, run: str, place: str) -> int:
        """Mark the rows of a run, with those of its stages, as deleted; return their number."""
        num_rows, query = 0, f"tags.`gradus.run` = '{run}' and tags.`gradus.place` = '{place}'"
        while found := self._client.search_runs([self._id], query, max_results=_PAGE_ROWS):
            for each in found:
                self._client.delete_run(each.info.run_id)
            num_rows += len(found)
        return num_rows

    def log_inputs(self, run_id: str, inputs: Mapping[str, Sequence[str]]) -> None:
        """Log artifacts, by role, as the datasets that a run read; MLflow keeps each once."""
        roles: dict[str, list[str]] = {}  # an artifact that has two is one dataset to MLflow
        for role, refs in inputs.items():
            for ref in refs:
                roles.setdefault(ref, []).append(role)
        if roles:
            self._client.log_inputs(run_id, [self._input(*each) for each in roles.items()])

    def _input(self, text: str, roles: Sequence[str]) -> entities.DatasetInput:
        """An input as a dataset by our digest, its role as context; the rows stay where they are."""
        ref = Ref.parse(text)
        manifest = self._store.find(ref)
        profile = json.dumps({"num_rows": manifest.rows}) if manifest else None
        source = json.dumps({"uri": str(self._store.path(ref))})
        dataset = entities.Dataset(ref.table, ref.digest, source_type="local", source=source, profile=profile)
        return entities.DatasetInput(dataset, [entities.InputTag("mlflow.data.context", " + ".join(roles))])

    def checkpoint(self, ref: Ref, run_id: str, params: Mapping[str, str]) -> str:
        """Log a checkpoint as a model by reference, nothing uploaded or pickled; return the model's id."""
        known = self._models(ref)
        model = known[0] if known else self._begun(ref, run_id, params)
        if model.status != entities.LoggedModelStatus.READY:  # new, or its reporter was killed here
            with tempfile.TemporaryDirectory(prefix="gradus-") as folder:
                get_external_mlflow_model_spec(model).save(str(Path(folder, MLMODEL_FILE_NAME)))
                self._client.log_model_artifacts(model.model_id, folder)
            self._client.finalize_logged_model(model.model_id, entities.LoggedModelStatus.READY)
        return model.model_id

    def _begun(self, ref: Ref, run_id: str, params: Mapping[str, str]) -> entities.LoggedModel:
        """Create the model of a checkpoint; `mlflow.create_external_model` would finish it, and only once."""
        return self._client.create_logged_model(
            self._id,
            name=f"policy-{params['round']}" if "round" in params else "policy",
            source_run_id=run_id or None,
            params=dict(params),
            tags={MLFLOW_MODEL_IS_EXTERNAL: "true", _OUTPUT: str(ref), "gradus.folder": str(self._store.path(ref))},
            model_type="policy",
        )

    def _models(self, ref: Ref) -> Sequence[entities.LoggedModel]:
        return self._client.search_logged_models([self._id], filter_string=f"tags.`{_OUTPUT}` = '{ref}'")

    def pruned(self, ref: Ref, time_s: float) -> None:
        """Tag the model of a checkpoint that lost files with the date, if MLflow has it."""
        day = datetime.fromtimestamp(time_s, UTC).date().isoformat()
        for model in self._models(ref):
            self._client.set_logged_model_tags(model.model_id, {"gradus.pruned": day})

    def log_output(self, run_id: str, model_id: str, round_: int) -> None:
        """Log a checkpoint as an output of a run, with its round as the step; MLflow would keep it a second time."""
        outputs = self._client.get_run(run_id).outputs
        if outputs is None or model_id not in [output.model_id for output in outputs.model_outputs]:
            self._client.log_outputs(run_id, [entities.LoggedModelOutput(model_id, round_)])

    def evaluated(self, inputs: Mapping[str, Sequence[str]], run_id: str, params: Mapping[str, str]) -> dict[str, str]:
        """Return what ties an evaluation's metrics to the checkpoint that it is of and to the problems that it used.

        Empty if the rollouts are somebody else's, whose policy is not in the lake.
        """
        rollouts = self._store.find(Ref.parse(inputs["rollouts"][0])) if inputs.get("rollouts") else None
        policies = [Ref.parse(text) for text in rollouts.parents.get("policy", ())] if rollouts else []
        if not policies or policies[0].table != CHECKPOINTS or not inputs.get("problems"):
            return {}
        problems = Ref.parse(inputs["problems"][0])
        model_id = self.checkpoint(policies[0], run_id, params)
        return {"model_id": model_id, "dataset_name": problems.table, "dataset_digest": problems.digest}

    def compared(self, folder: Path) -> str:
        """Return the lines of a comparison's note that link to its trainings; empty if the run is none."""
        if not (folder / COMPARISON).is_file():
            return ""
        found = json.loads((folder / COMPARISON).read_bytes())
        return links_note(self._id, {run: self._training(run) for m in found["methods"] for run in m["runs"]})

    def _training(self, name: str) -> str:
        """The newest run of a training; empty if its own reporter has not got so far."""
        query = f"tags.`gradus.run` = '{name}' and tags.`gradus.verb` = 'train'"
        return next((r.info.run_id for r in self._client.search_runs([self._id], query, max_results=1)), "")

    def name_checkpoint(self, model_id: str, ref: Ref, called: tuple[str, str], run_id: str, note: str) -> None:
        """Give a checkpoint an alias of a registered model: `called` are the model's name and the alias."""
        name, alias = called
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        known = self._client.search_model_versions(f"name = '{name}' and tag.`{_OUTPUT}` = '{ref}'")
        of_it: dict[str, Any] = {"source": f"models:/{model_id}", "run_id": run_id or None, "tags": {_OUTPUT: str(ref)}}
        version = (known[0] if known else self._client.create_model_version(name, **of_it)).version
        if note:
            self._client.update_model_version(name, version, description=note)
        self._client.set_registered_model_alias(name, alias, version)

    def traces(self, run_id: str, attempt: str, samples: Sequence[Sample]) -> None:
        """Log samples of an attempt as traces, each in about 60 ms, unless they are there with their feedback."""
        for index, sample in enumerate(samples):
            name = f"{attempt}:{index}"
            query = f"tags.`gradus.sample` = '{name}'"
            infos = [each.info for each in self._client.search_traces([self._id], filter_string=query)]
            whole = [info for info in infos if _RUN in info.trace_metadata]
            if torn := [info.trace_id for info in infos if _RUN not in info.trace_metadata]:
                self._client.delete_traces(self._id, trace_ids=torn)
            said = {each.name for info in whole for each in info.assessments}
            trace_id = whole[0].trace_id if whole else self._trace(run_id, name, sample)
            for kind in ("reward", "outcome"):
                if kind not in said and isinstance(value := sample.get(kind), str | float | int):
                    mlflow.log_feedback(trace_id=trace_id, name=kind, value=value, source=_SOURCE)

    def _trace(self, run_id: str, name: str, sample: Sample) -> str:
        span = mlflow.start_span_no_context(
            str(sample.get("problem_id", "rollout")),
            inputs=shown(sample, _ASKED),
            attributes={SpanAttributeKey.TRACE_TAG_PREFIX + "gradus.sample": name},
            tags={"gradus.sample": name},
            metadata={_RUN: run_id},
            experiment_id=self._id,
        )
        span.end(outputs=shown(sample, _ANSWERED))
        if isinstance(span, entities.NoOpSpan):
            raise RefusedError(f"no trace could be made of sample {name}")
        return span.trace_id


def experiment_of(client: MlflowClient, home: Path, uri: str) -> str:
    """The experiment's id; created, or taken out of the bin, and given its view, where need be."""
    found = client.get_experiment_by_name(names.EXPERIMENT)
    if found is None:
        artifacts = artifacts_uri(home) if uri.startswith("sqlite:") else None
        found = client.get_experiment(client.create_experiment(names.EXPERIMENT, artifact_location=artifacts))
    if found.lifecycle_stage == entities.LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    if not names.is_current(found.tags.get(names.VIEW_TAG)):
        client.set_experiment_tag(found.experiment_id, names.VIEW_TAG, names.saved_view())
    return found.experiment_id
