"""One call of a stage: its settings, its identity, its outcome, and one attempt of it. Does not import Prefect.

job = planned(store, Call("score", config, {"rollouts": [ref]}, round=3), run="tiny-1", seed=0)
store.find(Ref.parse(job.output))      # the artifact, if the call was computed before
execute(vars(job), Warm(), beat)   # an attempt, in whichever process: artifact and report out, manifest last
"""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import UUID

from gradus.components.settings import Config
from gradus.data.errors import StageError
from gradus.data.lake.manifest import REPORT, identity_digest
from gradus.data.lake.schema import SCORES
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Json, JsonObject
from gradus.tasks.host.processes import Warm, fault_point
from gradus.tasks.host.waiting import hold
from gradus.tasks.identity.loading import refuse_unpinned
from gradus.tasks.identity.pins import code_identity
from gradus.tasks.runs.records import Evaluation, Report, Summary
from gradus.tasks.stages.context import Beat, StageContext, read_report
from gradus.tasks.stages.registry import installed, stage_spec

_VERSIONED = ("gradus", "torch", "transformers", "math-verify", "pyarrow", "numpy")

Inputs = Mapping[str, Sequence[Ref]]
ContentKey = Callable[[Ref, Sequence[str] | None], str]


@dataclass(frozen=True)
class Job:
    """Task of one attempt; its fields travel to a worker as JSON."""

    stage: str
    lake: str
    output: str
    inputs: Mapping[str, list[str]]
    config: JsonObject
    seed: int
    identity: JsonObject = field(default_factory=dict)
    """Data that the digest of `output` was computed from."""
    run: str = ""
    """The run that the job belongs to, named to those who wait for its artifact."""
    facts: JsonObject = field(default_factory=dict[str, Json])
    """Facts that the run decides for the stage."""
    forced: bool = False
    """Compute even if the artifact exists."""
    restores: bool = False
    """Compute weights again that a checkpoint among the inputs lost to pruning, before the stage begins."""

    @property
    def recorded(self) -> JsonObject:
        """Settings, and the facts that the result depends on, for manifest and journal."""
        return {**self.config, **cast("JsonObject", self.identity.get("facts", {}))}


def execute(job: Mapping[str, Any], warm: Warm, beat: Beat) -> Report:
    """Run a job, commit its artifact and return the full report of the attempt (perf/compute_s included).

    If another command is computing the same artifact, wait for it and return the report that it kept. A failure leaves
    what the next attempt can continue from, and no folder if there is nothing.
    """
    task = Job(**job)
    store, ref = Store(Path(task.lake)), Ref.parse(task.output)
    with hold(store.path(ref), task.run, lambda text: beat(0.0, text)):
        if not task.forced and store.find(ref) is not None:
            return read_report(store, ref)
        if retries(store, ref):
            store.reopen(ref)
        else:
            store.discard(ref)
        try:
            if task.restores:
                # Weights that pruning removed: this repeats updates, and no rollouts, of rounds that a run shares.
                refs = {Ref.parse(text) for texts in task.inputs.values() for text in texts}
                for each in sorted((each for each in refs if store.pruned(each)), key=str):
                    from gradus.tasks.stages.update.replay import restore_checkpoint  # noqa: PLC0415 - PyTorch: seconds

                    restore_checkpoint(store, each, beat)
            return computed(task, store, warm, beat)
        except Exception:
            store.remove_empty(ref)
            raise


def retries(store: Store, ref: Ref) -> bool:
    """Return whether another attempt of a finished artifact asks again for the rows that failed, and keeps the others.

    Only a judge may answer otherwise the next time; a damaged artifact is computed anew.
    """
    if ref.table != SCORES.name or store.find(ref) is None:
        return False
    summary = read_report(store, ref).get("summary", {})
    return bool(summary.get("error", 0) + summary.get("timeout", 0))


def computed(task: Job, store: Store, warm: Warm, beat: Beat) -> Report:
    """Run a job in this process and commit its artifact to a store; return the full report of the attempt.

    Raise StageError if a metric is not finite.
    """
    spec = stage_spec(task.stage)
    out = store.writer(Ref.parse(task.output))
    context = StageContext(
        store=store,
        inputs={role: tuple(Ref.parse(r) for r in refs) for role, refs in task.inputs.items()},
        out=out,
        seed=task.seed,
        warm=warm,
        beat=beat,
        facts=task.facts,
    )
    if spec.distribution:
        installed()  # it may read tables of other packages
    function, config = spec.function(), spec.settings.model_validate(task.config)
    started, cpu_s = time.perf_counter(), _cpu_s()
    result = function(context, config)
    refuse_unpinned(config)
    seconds = time.perf_counter() - started
    used = {"perf/compute_s": seconds, "perf/cpu_s": _cpu_s() - cpu_s}
    if gpus := num_gpus(config):
        used["perf/gpu_s"] = seconds * gpus
    full = replace(result, clock={**result.clock, **used}).full
    for metrics in (full.get("metrics", {}), *full.get("steps", ())):
        for name, value in metrics.items():
            if not math.isfinite(value):
                what = f"stage {task.stage} reported {name} = {value}"
                raise StageError(what, hint="look at the rows that it was given")
    fault_point(f"{task.stage}:before_manifest")
    out.write_file(REPORT, json.dumps(result.kept, allow_nan=False, default=str).encode(), receipt=False)
    parents = {**task.inputs, **{role: [str(ref)] for role, ref in result.parents.items()}}
    out.commit(identity=task.identity, config=task.recorded, parents=parents, versions=dict(_versions()))
    fault_point(f"{task.stage}:after_manifest")
    return full


def _cpu_s() -> float:
    """CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def num_gpus(config: Config) -> int:
    """Return how many GPUs a stage held: those that its process sees, if it has a setting `device` that allows one."""
    torch = sys.modules.get("torch")
    wanted = getattr(config, "device", "cpu")
    return int(torch.cuda.device_count()) if torch is not None and wanted != "cpu" else 0


@cache
def _versions() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in _VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@dataclass(frozen=True)
class Call:
    """One stage of a run: its settings, its inputs, its round and what it is for (train, escalate1, profile, eval).

    The purpose tells the stages of one round apart.
    """

    name: str
    config: Config
    inputs: Inputs
    round: int = 0
    purpose: str = "train"
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Facts decided by the run: a round in its rows, a source, a suite's name. Unless the stage declares them
    incidental, the result depends on them."""
    seed: int | None = None
    """Seed of what the stage draws, part of its identity if it draws; None is the run's own."""

    @property
    def label(self) -> str:
        """The name of the call in a run: purpose if it is not training, stage, round."""
        return label(self.name, self.round, self.purpose)

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of the call within its run: stage, round, purpose."""
        return self.name, self.round, self.purpose


@dataclass(frozen=True)
class Outcome:
    """Outcome of a stage: its artifact, whether it was reused, the seconds spent and its report."""

    stage: str
    purpose: str
    round: int
    ref: Ref
    reused: bool
    seconds: float
    report: Report
    task_run: UUID | None = None
    """The stage's task run in Prefect."""

    @property
    def summary(self) -> Summary:
        """The counts that the stage reported."""
        return self.report.get("summary", {})

    @property
    def evaluation(self) -> Evaluation:
        """The same of the stage `evaluate`, with its figures."""
        return cast("Evaluation", self.summary)

    @property
    def label(self) -> str:
        """Name of the call in the progress display."""
        return label(self.stage, self.round, self.purpose)


class Stages(Protocol):
    """Runner of the stages of a training, or forecaster of what running them would compute."""

    @property
    def store(self) -> Store:
        """The store of the artifacts."""
        ...

    def stage(self, call: Call) -> Outcome:
        """Return the outcome of one stage."""
        ...

    def halt(self) -> None:
        """End what other threads have under way."""

    def say(self, text: str) -> None:
        """Show a sentence at the terminal."""

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        """Let the checkpoints of other rounds than these lose their weights, and their train states."""


def label(stage: str, round_: int, purpose: str) -> str:
    """Return the name of a call in a run.

    >>> label("score", 3, "eval"), label("score", 3, "train")
    ('eval-score-3', 'score-3')
    """
    return "-".join([*([] if purpose == "train" else [purpose]), stage, str(round_)])


def planned(
    store: Store, call: Call, *, run: str, seed: int, forced: bool = False, content_key: ContentKey | None = None
) -> Job:
    """Return the job of a call; its output is named by everything that its result depends on.

    Inputs count by their content, so that one that was computed anew and came out as before changes no name.
    `seed` is the run's own. `content_key` replaces the store's for inputs that are not in the store.
    """
    spec, key_of = stage_spec(call.name), content_key or store.content_key
    seed = seed if call.seed is None else call.seed
    reads = spec.reads(call.config)
    given = {role: refs for role, refs in sorted(call.inputs.items()) if refs}
    identity: dict[str, Json] = {
        "stage": spec.name,
        "version": spec.version,
        "code": code_identity(call.config, spec.distribution),
        "config": call.config.identified(),
        "parents": {role: [key_of(ref, reads.get(role)) for ref in refs] for role, refs in given.items()},
    }
    if facts := {name: fact for name, fact in call.facts.items() if name not in spec.incidental}:
        identity["facts"] = facts
    if spec.draws:
        identity["seed"] = seed
    return Job(
        stage=spec.name,
        lake=str(store.root),
        output=str(Ref(spec.makes, identity_digest(identity))),
        inputs={role: [str(ref) for ref in refs] for role, refs in given.items()},
        config=call.config.model_dump(mode="json"),
        facts=call.facts,
        seed=seed,
        identity=identity,
        run=run,
        forced=forced,
    )
