"""The stage adapter: a stage with its identity, its reuse, its process, its commit and its report, as a Prefect task.

    session.stage("score", config, {"rollouts": [ref]}, round=3)

Prefect's own cache is switched off: it says Cached after an output was deleted. What is finished is what has a valid
manifest; such a stage ends as `Completed(name="Reused")`.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from data.errors import GateError, GradusError
from data.manifest import Manifest, identity
from data.store import Ref, Store
from tasks.attempt import Job, execute, read_report
from tasks.config import Config
from tasks.interrupt import raise_if_interrupted
from tasks.journal import Journal
from tasks.pins import pinned
from tasks.progress import ProgressArtifact
from tasks.registry import StageSpec, stage_spec
from tasks.settings import wall_limit_s
from tasks.supervise import HaltedError, Limits, WorkerPool
from tasks.versions import code_identity

Inputs = Mapping[str, Sequence[Ref]]


@dataclass(frozen=True)
class Outcome:
    """What became of a stage: its artefact, whether it was reused, the seconds spent and its report."""

    stage: str
    purpose: str
    round: int
    ref: Ref
    reused: bool
    seconds: float
    report: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The counts that the stage reported."""
        return self.report.get("summary", {})

    @property
    def label(self) -> str:
        """How its progress was called."""
        return _label(self.stage, self.round, self.purpose)


@dataclass
class Session:
    """One run of the command: where artefacts lie, who computes, what was done so far.

    `forced` names stages, as (stage, round, purpose), that are computed although their artefact exists.
    `apart` gives sampling a worker beside the one that learns: two threads may then have a stage each.
    """

    store: Store
    journal: Journal
    pool: WorkerPool
    seed: int
    forced: frozenset[tuple[str, int, str]] = frozenset()
    apart: bool = False
    on_progress: Callable[[str, float, str], None] | None = None
    """Told of every beat: the stage's label, the share done, the same in the stage's own units."""
    on_end: Callable[[Outcome], None] | None = None
    """Told of every stage that ended well."""
    outcomes: list[Outcome] = field(default_factory=list)

    def stage(self, name: str, config: Config, inputs: Inputs, *, round: int = 0, purpose: str = "train") -> Outcome:  # noqa: A002
        """Run, or reuse, one stage as a Prefect task and remember its outcome; raises what the stage raised.

        `purpose` tells the stages of one round apart: train, hint1 ..., profile, eval.
        """
        raise_if_interrupted()
        self.pool.raise_if_halted()
        request = _Request(self, name, pinned(config), inputs, round, purpose)
        # No tags: Prefect asks its server for each tag's concurrency slot, seconds a time while that writes events.
        run = _stage_task.with_options(name=name, task_run_name=request.label)
        outcome = run(request).result()
        self.outcomes.append(outcome)
        if self.on_end is not None:
            self.on_end(outcome)
        return outcome


class _Request:
    """What a Prefect task is given. No dataclass: Prefect walks through those, and so through all earlier outcomes."""

    def __init__(self, session: Session, name: str, config: Config, inputs: Inputs, round_: int, purpose: str) -> None:
        self.session = session
        self.name = name
        self.config = config
        self.inputs = inputs
        self.round = round_
        self.purpose = purpose

    @property
    def label(self) -> str:
        """The name of the task run: purpose where it is not training, stage, round."""
        return _label(self.name, self.round, self.purpose)


def _label(stage: str, round_: int, purpose: str) -> str:
    return "-".join([*([] if purpose == "train" else [purpose]), stage, str(round_)])


@task(cache_policy=NO_CACHE, persist_result=False, retries=0)
def _stage_task(request: _Request) -> State[Outcome]:
    session, spec = request.session, stage_spec(request.name)
    job = _job(session, spec, request)
    ref = Ref.parse(job.output)
    started = time.perf_counter()
    found = None if (request.name, request.round, request.purpose) in session.forced else session.store.find(ref)
    report = _attempt(session, spec, job, request) if found is None else _reuse(session, found, job, request)
    outcome = Outcome(
        request.name, request.purpose, request.round, ref, found is not None, time.perf_counter() - started, report
    )
    return Completed(name="Reused" if outcome.reused else "Completed", data=outcome)


def _job(session: Session, spec: StageSpec, request: _Request) -> Job:
    config = request.config.model_dump(mode="json")
    inputs = {role: [str(ref) for ref in refs] for role, refs in sorted(request.inputs.items()) if refs}
    parents = {
        role: [session.store.content_key(ref) for ref in refs] for role, refs in sorted(request.inputs.items()) if refs
    }
    digest = identity(
        stage=spec.name,
        stage_version=spec.version,
        config=request.config.identified(),
        code=code_identity(request.config),
        parents=parents,
        seed=session.seed,
    )
    return Job(
        stage=spec.name,
        lake=str(session.store.root),
        output=str(Ref(spec.table, digest)),
        inputs=inputs,
        config=config,
        seed=session.seed,
    )


def _reuse(session: Session, manifest: Manifest, job: Job, request: _Request) -> dict[str, Any]:
    if manifest.gate:
        raise GateError(manifest.gate)
    session.store.verify(Ref.parse(job.output))
    report = read_report(session.store, Ref.parse(job.output))
    session.journal.stage_reused(stage=job.stage, round=request.round, purpose=request.purpose, output=job.output)
    return report


def _attempt(session: Session, spec: StageSpec, job: Job, request: _Request) -> dict[str, Any]:
    journal, store = session.journal, session.store
    ref = Ref.parse(job.output)
    if store.find(ref) is not None:
        store.discard(ref)
    attempt = journal.stage_started(
        stage=spec.name,
        round=request.round,
        purpose=request.purpose,
        output=job.output,
        config=dict(job.config),
        inputs=dict(job.inputs),
    )
    started = time.perf_counter()
    try:
        report = _compute(session, spec, job, request)
    except BaseException as error:
        message = str(error) if isinstance(error, GradusError) else f"{type(error).__name__}: {error}"
        status = "killed" if isinstance(error, KeyboardInterrupt | HaltedError) else "failed"
        journal.stage_finished(attempt, status=status, seconds=time.perf_counter() - started, error=message)
        raise
    journal.stage_finished(
        attempt, status="finished", seconds=time.perf_counter() - started, report=report, folder=str(store.path(ref))
    )
    return report


def _compute(session: Session, spec: StageSpec, job: Job, request: _Request) -> dict[str, Any]:
    artifact = ProgressArtifact(spec.name)

    def beat(frac: float, text: str = "") -> None:
        artifact(frac, text)
        if session.on_progress is not None:
            session.on_progress(request.label, frac, text)

    beat(0.0, "begun")
    worker = spec.worker_for(request.config, apart=session.apart)
    if session.apart and spec.name == "rollout":
        session.pool.prestart("policy")  # what learns from these rollouts is wanted soon
    if worker:
        report = session.pool.run(worker, job.to_json(), Limits(wall_s=wall_limit_s()), beat)
    else:
        report = execute(job.to_json(), {}, beat)
    artifact.done("committed")
    return report


def git_sha(folder: Path) -> str:
    """The commit that the code stands at, or nothing outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True, env=os.environ
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
