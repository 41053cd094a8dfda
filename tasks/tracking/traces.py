"""Samples as traces with feedback. MLflow renders a text as Markdown, remote pictures included, an object as JSON."""

from collections.abc import Sequence

import mlflow
from mlflow import MlflowClient
from mlflow.entities import AssessmentSource, AssessmentSourceType, NoOpSpan

from gradus.tasks.runs.records import Sample
from gradus.tasks.tracking.facts import ends, shown
from gradus.tasks.tracking.loop import RefusedError

_ASKED = ("question", "hint_text", "answer")
_ANSWERED = ("completion", "extracted", "error")


class Traces:
    """Tells MLflow of the best and the worst samples of a round; a trace costs about 60 ms."""

    def __init__(self, client: MlflowClient, experiment: str, per_round: int) -> None:
        self._client = client
        self._experiment = experiment
        self._per_round = per_round

    def log(self, run_id: str, attempt: str, samples: Sequence[Sample], done: int, *, looks_first: bool) -> int:
        """Log as many samples of an attempt as its round has left; return the round's number of traces."""
        chosen = ends(samples, max(0, self._per_round - done))
        for index, sample in enumerate(chosen):
            name = f"{attempt}:{index}"
            query = f"tags.`gradus.sample` = '{name}'"
            if not (looks_first and self._client.search_traces(locations=[self._experiment], filter_string=query)):
                self._trace(run_id, name, sample)
        return done + len(chosen)

    def _trace(self, run_id: str, name: str, sample: Sample) -> None:
        span = mlflow.start_span_no_context(
            str(sample.get("problem_id", "rollout")),
            inputs=shown(sample, _ASKED),
            tags={"gradus.sample": name},
            metadata={"mlflow.sourceRun": run_id},
            experiment_id=self._experiment,
        )
        span.end(outputs=shown(sample, _ANSWERED))
        if isinstance(span, NoOpSpan):
            raise RefusedError(f"no trace could be made of sample {name}")
        source = AssessmentSource(source_type=AssessmentSourceType.CODE, source_id="gradus.score")
        for kind in ("reward", "outcome"):
            if isinstance(value := sample.get(kind), str | float | int):
                mlflow.log_feedback(trace_id=span.trace_id, name=kind, value=value, source=source)
