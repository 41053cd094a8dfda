"""Inputs and outputs of a stage: the contract between the adapter and the stages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol, Self, cast

import pyarrow as pa

from gradus.data.lake.manifest import REPORT
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.records import Json, JsonObject
from gradus.tasks.host.processes import Warm
from gradus.tasks.runs.records import Metrics, Report, Sample, Summary

NUM_SAMPLES = 16
"""Rows that a stage's report shows."""


class Beat(Protocol):
    """Called by a stage at least every few seconds: share done (0 to 1) and a line of text."""

    def __call__(self, frac: float, text: str = "") -> None:
        """Say how far the stage is."""


@dataclass(frozen=True)
class StageContext:
    """Inputs and outputs of one attempt of a stage.

    `inputs` maps a role (problems, plan, hints, rollouts, scores, difficulty, policy) to artifacts, in order;
    `out` takes the shards or files of the one artifact that the stage makes;
    `facts` are decisions of the run for the stage: the round of its rows, a source, the name of a suite, and of an
    update whether its train state is saved before the stage ends ("save": "now", as without the fact), while the next
    stages compute ("behind"), or not where it can be computed again ("never"), and whether it may skip its steps;
    `warm` outlives the job in its worker: loaded objects stay there for the next.
    """

    store: Store
    inputs: Mapping[str, tuple[Ref, ...]]
    out: ShardWriter
    seed: int
    warm: Warm
    beat: Beat
    facts: JsonObject = field(default_factory=dict[str, Json])

    @property
    def round(self) -> int:
        """The round that is written in its rows; 0 outside of a training's rounds."""
        return int(str(self.facts.get("round", 0)))

    def one(self, role: str) -> Ref:
        """Return the single artifact of a role; raise KeyError if the role is absent."""
        (ref,) = self.inputs[role]
        return ref

    def columns(self, role: str) -> list[str]:
        """Names of the columns of a role, those that the schema does not know at the end."""
        return list(dict.fromkeys(name for ref in self.inputs[role] for name in self.store.columns(ref)))

    def table(self, role: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a role, verified, in the order of its artifacts and shards."""
        parts = [self.store.read(ref, columns) for ref in self.inputs[role]]
        return pa.concat_tables(parts, promote_options="default")


@dataclass(frozen=True)
class StageResult:
    """Report of one attempt beside its artifact: metrics by the names of the design, counts, readable samples.

    The first four are part of the artifact and must be the same for the same identity; `steps` holds one dict of
    metrics per optimiser step, if the stage has steps. The rest describes this attempt alone and goes to the journal:
    `clock` and `step_clock` hold metrics measured with a clock, `attempt` counts what this attempt did.
    `parents` are artifacts that the made one cannot be used without, by role; its inputs are named without this.
    """

    metrics: Metrics = field(default_factory=dict)
    summary: Mapping[str, object] = field(default_factory=dict)
    samples: Sequence[Sample] = field(default_factory=list)
    steps: list[Metrics] = field(default_factory=list)
    clock: Metrics = field(default_factory=dict)
    step_clock: list[Metrics] = field(default_factory=list)
    attempt: Mapping[str, object] = field(default_factory=dict)
    parents: Mapping[str, Ref] = field(default_factory=dict[str, Ref])

    def to_json(self) -> dict[str, Any]:
        """The fields as another process reads them."""
        return asdict(self) | {"parents": {role: str(ref) for role, ref in self.parents.items()}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the result that another process sent."""
        parents = {role: Ref.parse(ref) for role, ref in fields.get("parents", {}).items()}
        given: dict[str, Any] = {**fields, "parents": parents}
        return cls(**given)

    @property
    def kept(self) -> Mapping[str, object]:
        """The part that is stored with the artifact."""
        return {"metrics": self.metrics, "summary": self.summary, "samples": self.samples, "steps": self.steps}

    @property
    def full(self) -> Report:
        """The report of this attempt: the stored part with its clock and its counts."""
        pairs = zip_longest(self.steps, self.step_clock, fillvalue={})
        return {
            "metrics": {**self.metrics, **self.clock},
            "summary": cast("Summary", {**self.summary, **self.attempt}),
            "samples": self.samples,
            "steps": [{**step, **clock} for step, clock in pairs],
            "clock": self.clock,
            "step_clock": self.step_clock,
        }


def read_report(store: Store, ref: Ref) -> Report:
    """The report kept with a finished artifact, verified; empty if it was made outside a stage."""
    content = store.read_file(ref, REPORT)
    return json.loads(content) if content is not None else {}


def with_clock(report: Report, clock: Metrics, step_clock: list[Metrics]) -> Report:
    """Return the report of an artifact with the times of the attempt that made it, as the journal has them."""
    metrics, summary = report.get("metrics", {}), report.get("summary", {})
    kept = StageResult(metrics, summary, report.get("samples", ()), report.get("steps", []))
    return replace(kept, clock=clock, step_clock=step_clock).full
