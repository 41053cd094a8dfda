"""One attempt of one stage, in whichever process: context in, artefact and report out, manifest last."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from data.errors import GateError, StageError
from data.manifest import Manifest
from data.schema import SCHEMA_VERSION
from data.store import Ref, ShardWriter, Store
from tasks.context import Beat, StageContext, StageResult
from tasks.faults import fault_point
from tasks.registry import StageSpec, stage_spec
from tasks.runlock import RunLock

REPORT = "report.json"
_VERSIONED = ("gradus", "torch", "transformers", "math-verify", "pyarrow", "numpy")


@dataclass(frozen=True)
class Job:
    """What one attempt is to do; travels to a worker as JSON."""

    stage: str
    lake: str
    output: str
    inputs: Mapping[str, list[str]]
    config: Mapping[str, Any]
    seed: int

    def to_json(self) -> dict[str, Any]:
        """The job as plain JSON values."""
        return asdict(self)


def execute(job: dict[str, Any], warm: dict[str, Any], beat: Beat) -> dict[str, Any]:
    """Run a job, commit its artefact and return its report; raises GateError where a limit was breached.

    The report that is returned, unlike the one that is kept, says how long the stage itself took (perf/compute_s).
    """
    task = Job(**job)
    store, ref = Store(Path(task.lake)), Ref.parse(task.output)
    with RunLock(store.path(ref), hint="another command computes the same; wait for it, then repeat this one"):
        found = store.find(ref)
        report = _computed(task, store, warm, beat) if found is None else read_report(store, ref)
    if report.get("gate"):
        raise GateError(report["gate"])
    return report


def _computed(task: Job, store: Store, warm: dict[str, Any], beat: Beat) -> dict[str, Any]:
    spec = stage_spec(task.stage)
    out = store.writer(Ref.parse(task.output))
    context = StageContext(
        store=store,
        inputs={role: tuple(Ref.parse(r) for r in refs) for role, refs in task.inputs.items()},
        out=out,
        seed=task.seed,
        warm=warm,
        beat=beat,
    )
    function, config = spec.function(), spec.config.model_validate(task.config)
    started = time.perf_counter()
    result = function(context, config)
    compute_s = time.perf_counter() - started
    report = checked_report(task.stage, result)
    _commit(spec, task, out, report)
    return {**report, "metrics": {**report["metrics"], "perf/compute_s": compute_s}}


def checked_report(stage: str, result: StageResult) -> dict[str, Any]:
    """The result as plain JSON values; StageError where a metric is not finite."""
    report = asdict(result)
    for metrics in (result.metrics, *result.steps):
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise StageError(f"stage {stage} reported {name} = {value}", hint="look at the rows that it was given")
    return report


def read_report(store: Store, ref: Ref) -> dict[str, Any]:
    """The report of a finished artefact; empty where it was made outside a stage."""
    path = store.path(ref) / REPORT
    return json.loads(path.read_text()) if path.exists() else {}


def _commit(spec: StageSpec, task: Job, out: ShardWriter, report: dict[str, Any]) -> Manifest:
    fault_point(f"{spec.name}:before_manifest")
    text = json.dumps(report, allow_nan=False, default=str)
    (out.folder / REPORT).write_text(text)
    manifest = out.commit(
        Manifest(
            table=out.ref.table,
            digest=out.ref.digest,
            schema_version=SCHEMA_VERSION,
            stage=spec.name,
            stage_version=spec.version,
            seed=task.seed,
            config=dict(task.config),
            parents={role: list(refs) for role, refs in task.inputs.items()},
            versions=dict(_versions()),
            gate=report["gate"],
        )
    )
    fault_point(f"{spec.name}:after_manifest")
    return manifest


@cache
def _versions() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
