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

from data.errors import GateError
from data.manifest import identity_digest
from data.store import Ref, Store
from tasks.attempt import Job, execute, read_report
from tasks.config import Config
from tasks.ending import ending
from tasks.gates import breach
from tasks.interrupt import raise_if_interrupted
from tasks.journal import Journal
from tasks.pins import pinned
from tasks.progress import ProgressArtifact
from tasks.registry import stage_spec
from tasks.settings import wall_limit_s
from tasks.supervise import Limits, WorkerPool
from tasks.versions import code_identity
from tasks.waiting import wait_until_free

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
    on_wait: Callable[[str], None] | None = None
    """Told for which other run a stage waits, every few seconds."""
    outcomes: list[Outcome] = field(default_factory=list)

    def stage(
        self,
        name: str,
        config: Config,
        inputs: Inputs,
        *,
        round: int = 0,  # noqa: A002
        purpose: str = "train",
        seed: int | None = None,
    ) -> Outcome:
        """Run, or reuse, one stage as a Prefect task and remember its outcome; raises what the stage raised.

        `purpose` tells the stages of one round apart: train, hint1 ..., profile, eval. `seed` is the run's own if
        none is given; it is part of the identity of stages that draw.
        """
        raise_if_interrupted()
        self.pool.raise_if_halted()
        request = _Request(self, name, pinned(config), inputs, round, purpose, self.seed if seed is None else seed)
        # No tags: Prefect asks its server for each tag's concurrency slot, seconds a time while that writes events.
        run = _stage_task.with_options(name=name, task_run_name=request.label)
        outcome = run(request).result()
        self.outcomes.append(outcome)
        if self.on_end is not None:
            self.on_end(outcome)
        return outcome


class _Request:
    """What a Prefect task is given. No dataclass: Prefect walks through those, and so through all earlier outcomes."""

    def __init__(
        self, session: Session, name: str, config: Config, inputs: Inputs, round_: int, purpose: str, seed: int
    ) -> None:
        self.session = session
        self.name = name
        self.config = config
        self.inputs = inputs
        self.round = round_
        self.purpose = purpose
        self.seed = seed

    @property
    def forced(self) -> bool:
        """Whether the stage is computed although its artefact exists."""
        return (self.name, self.round, self.purpose) in self.session.forced

    @property
    def label(self) -> str:
        """The name of the task run: purpose where it is not training, stage, round."""
        return _label(self.name, self.round, self.purpose)


def _label(stage: str, round_: int, purpose: str) -> str:
    return "-".join([*([] if purpose == "train" else [purpose]), stage, str(round_)])


@task(cache_policy=NO_CACHE, persist_result=False, retries=0)
def _stage_task(request: _Request) -> State[Outcome]:
    job = _job(request)
    started = time.perf_counter()
    reused = not request.forced and _is_finished(request.session, Ref.parse(job.output))
    report = _reuse(job, request) if reused else _attempt(job, request)
    seconds = time.perf_counter() - started
    outcome = Outcome(request.name, request.purpose, request.round, Ref.parse(job.output), reused, seconds, report)
    return Completed(name="Reused" if reused else "Completed", data=outcome)


def _job(request: _Request) -> Job:
    session, spec = request.session, stage_spec(request.name)
    given = {role: refs for role, refs in sorted(request.inputs.items()) if refs}
    identity: dict[str, Any] = {
        "stage": spec.name,
        "version": spec.version,
        "code": code_identity(request.config),
        "config": request.config.identified(),
        "parents": {role: [session.store.content_key(ref) for ref in refs] for role, refs in given.items()},
    }
    if spec.draws:
        identity["seed"] = request.seed
    return Job(
        stage=spec.name,
        lake=str(session.store.root),
        output=str(Ref(spec.table, identity_digest(identity))),
        inputs={role: [str(ref) for ref in refs] for role, refs in given.items()},
        config=request.config.model_dump(mode="json"),
        seed=request.seed,
        identity=identity,
        run=session.journal.run,
        forced=request.forced,
    )


def _is_finished(session: Session, ref: Ref) -> bool:
    """Whether the artefact is there, after waiting for another command that computes it."""
    if session.store.find(ref) is not None:
        return True
    wait_until_free(session.store.path(ref), session.on_wait or _ignore)
    return session.store.find(ref) is not None


def _ignore(text: str) -> None:
    """Nobody listens."""


def _reuse(job: Job, request: _Request) -> dict[str, Any]:
    session, ref = request.session, Ref.parse(job.output)
    session.store.verify(ref)
    report = read_report(session.store, ref)
    if breach(job.stage, report, request.config):
        attempt = _started(job, request)
        return _checked(attempt, report, 0.0, job, request)
    session.journal.stage_reused(stage=job.stage, round=request.round, purpose=request.purpose, output=job.output)
    return report


def _attempt(job: Job, request: _Request) -> dict[str, Any]:
    journal = request.session.journal
    attempt = _started(job, request)
    started = time.perf_counter()
    try:
        report = _compute(job, request)
    except BaseException as error:
        status, message = ending(error)
        journal.stage_finished(attempt, status=status, seconds=time.perf_counter() - started, error=message)
        raise
    return _checked(attempt, report, time.perf_counter() - started, job, request)


def _started(job: Job, request: _Request) -> str:
    return request.session.journal.stage_started(
        stage=job.stage,
        round=request.round,
        purpose=request.purpose,
        output=job.output,
        config=dict(job.config),
        inputs=dict(job.inputs),
    )


def _checked(attempt: str, report: dict[str, Any], seconds: float, job: Job, request: _Request) -> dict[str, Any]:
    """Write the end of an attempt to the journal and return its report; raise GateError if a limit is breached."""
    sentence = breach(job.stage, report, request.config)
    folder = str(request.session.store.path(Ref.parse(job.output)))
    status = "failed" if sentence else "finished"
    request.session.journal.stage_finished(
        attempt, status=status, seconds=seconds, report=report, folder=folder, error=sentence
    )
    if sentence:
        raise GateError(sentence, hint="the rows are kept: with another limit the same command computes nothing again")
    return report


def _compute(job: Job, request: _Request) -> dict[str, Any]:
    session, spec = request.session, stage_spec(request.name)
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
