"""The stage adapter: a stage with its identity, its reuse, its process, its commit and its report, as a Prefect task.

    session.stage(Call("score", config, {"rollouts": [ref]}, round=3))

Prefect's own cache is switched off: it says Cached after an output was deleted. What is finished is what has a valid
manifest; such a stage ends as `Completed(name="Reused")`.
"""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from uuid import UUID

from prefect import Task, task
from prefect._internal.control_listener import get_intent
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import TerminationSignal
from prefect.runtime import task_run
from prefect.states import Failed

from gradus.components.settings import Config
from gradus.components.stage import Stage
from gradus.data.errors import CorruptArtifactError, GateError, GradusError, in_words
from gradus.data.lake.manifest import FILE_NAME
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.settings import wall_limit_s
from gradus.tasks.host.interrupt import interrupted_by, raise_if_interrupted
from gradus.tasks.host.processes import Warm
from gradus.tasks.host.waiting import GpuTurn, hold, wait_until_free
from gradus.tasks.identity.pins import pinned
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.records import Label, Report, Status, sentence
from gradus.tasks.runtime.calls import Call, Inputs, Job, Outcome, execute, planned, retries
from gradus.tasks.runtime.prefect_shown import (
    KnownState,
    ProgressArtifact,
    log_failure,
    log_outcome,
    made_in,
    publish_round,
)
from gradus.tasks.runtime.pruning import computed_by, planned_removals, remove
from gradus.tasks.runtime.resuming import Resuming
from gradus.tasks.runtime.supervise import HaltedError, Limits, WorkerPool
from gradus.tasks.stages.context import read_report
from gradus.tasks.stages.registry import stage_spec


def ending(error: BaseException) -> tuple[Status, str]:
    """Return the status and the sentence of an attempt that raised `error`.

    Prefect turns SIGTERM into TerminationSignal; only its runner's own request, which comes before the signal, is a
    cancellation. That request has no public reader in Prefect 3.7. A library that the signal interrupts may raise
    something else (pydantic: SchemaError), so a request counts whatever foreign error it ends in.
    """
    match error:
        case HaltedError():
            return "killed", str(error)
        case GradusError():
            return "failed", str(error)
        case KeyboardInterrupt():
            how = "ended by SIGTERM" if interrupted_by() == signal.SIGTERM else "stopped by Ctrl-C"
            return "killed", f"{how}; {AGAIN}"
        case _ if get_intent() == "cancel":
            return "cancelled", f"cancelled in Prefect; {AGAIN}"
        case TerminationSignal():
            return "killed", f"ended by SIGTERM; {AGAIN}"
        case _:
            return "failed", str(in_words(error))


@dataclass
class Session:
    """One run of the command: where artifacts lie, who computes, what was done so far.

    `forced` names stages, as (stage, round, purpose), that are computed although their artifact exists.
    `separate_sampler` adds a worker for sampling to the one for learning: two threads may then run a stage each.
    """

    store: Store
    journal: Journal
    pool: WorkerPool
    seed: int
    forced: frozenset[tuple[str, int, str]] = frozenset()
    separate_sampler: bool = False
    on_progress: Callable[[str, float, str], None] = lambda _label, _frac, _text: None
    """Called on every heartbeat: the stage's label, the share done, the same in the stage's own units."""
    on_end: Callable[[Outcome], None] = lambda _: None
    """Called after every stage that succeeded."""
    on_wait: Callable[[str], None] = lambda _: None
    """Called every few seconds with the run that a stage waits for, and with other messages."""
    restores: bool = False
    """Restore a pruned checkpoint that a stage in a worker reads, as one of rounds that a run shares with another."""
    outcomes: list[Outcome] = field(default_factory=list)
    gpu: GpuTurn = field(init=False)
    _resuming: Resuming = field(init=False)
    _tidied: set[tuple[int, Ref, bool, bool]] = field(default_factory=set[tuple[int, Ref, bool, bool]])
    """Rounds of a model that `make_room` has seen to, and whether their weights and train states stayed."""

    def __post_init__(self) -> None:
        """Have no turn on a GPU yet, and know what the command before left."""
        self.gpu = GpuTurn(self.journal.run, self.say)
        self._resuming = Resuming(self.store, self.journal.folder)

    def stage(self, call: Call) -> Outcome:
        """Run, or reuse, one stage as a Prefect task and remember its outcome; raises what the stage raised."""
        raise_if_interrupted()
        self.pool.raise_if_halted()
        attempt = partial(_shown_outcome, self, replace(call, config=pinned(call.config)))
        outcome = _task_called(call.name)(call.label, attempt, wait_for=self._made_by(call.inputs)).result()
        self.outcomes.append(outcome)
        self.on_end(outcome)
        if (account := self._resuming.after(outcome, call)) is not None:
            self.journal.resumed(account)
            self.say(sentence(account))
        return outcome

    def _made_by(self, inputs: Inputs) -> list[KnownState]:
        """The tasks that made the inputs, from which Prefect draws an arrow each."""
        given = {ref for refs in inputs.values() for ref in refs}
        made = {outcome.ref: outcome.task_run for outcome in self.outcomes if outcome.ref in given}
        return [made_in(task_run) for task_run in made.values() if task_run]

    def close(self) -> None:
        """Let other runs have the GPU, without this run's worker in its memory."""
        if self.gpu.taken:
            self.pool.keep_none()
        self.gpu.end()

    def halt(self) -> None:
        """End what the workers compute; the threads that wait for it hear of it."""
        self.pool.halt()

    def say(self, text: str) -> None:
        """Show a sentence at the terminal."""
        self.on_wait(text)

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        """Let the checkpoints of other rounds than these lose their weights, and their train states.

        Those that this run found, and did not compute, are left as they are.
        """
        todo = {(index, ref, index in weights, index in states) for index, ref in made.items()} - self._tidied
        self._tidied |= todo
        rounds = {index: ref for index, ref, *_ in sorted(todo)}
        found = frozenset(made.values()) - computed_by(self.journal.folder)
        if removals := planned_removals(self.store, rounds, weights, states, found):
            num_bytes = remove(self.store, removals, self.say)
            self.journal.pruned([str(each.ref) for each in removals], num_bytes)


@task(cache_policy=NO_CACHE, persist_result=False, retries=0)
def _stage_task(label: str, attempt: Callable[[], State[Outcome]]) -> State[Outcome]:  # noqa: ARG001 - the run's name
    return attempt()


@cache
def _task_called(name: str) -> Task[[str, Callable[[], State[Outcome]]], State[Outcome]]:
    """Return the task of a stage. It is given a callable: Prefect would look into a session for results to wait for.

    No tags: Prefect asks its server for each tag's concurrency slot, seconds a time while that writes events.
    """
    return _stage_task.with_options(name=name, task_run_name="{label}")


def _shown_outcome(session: Session, call: Call) -> State[Outcome]:
    """Return the outcome of a stage, or its failure, as a state of Prefect's."""
    try:
        outcome = _outcome(session, call)
    except Exception as error:  # noqa: BLE001 - Prefect's own state would name the type and print a traceback
        log_failure(error)
        return Failed(message=str(in_words(error)), data=error)
    log_outcome(outcome, session.store.path(outcome.ref))
    publish_round(session.journal.run, session.store, outcome, session.outcomes)
    return KnownState(type=StateType.COMPLETED, name="Reused" if outcome.reused else "Completed", data=outcome)


def _outcome(session: Session, call: Call) -> Outcome:
    """Reuse or compute the stage; raises what it raised."""
    forced = call.key in session.forced
    job = planned(session.store, call, run=session.journal.run, seed=session.seed, forced=forced)
    started = time.perf_counter()
    ref = Ref.parse(job.output)
    if not forced and session.store.find(ref) is None:
        wait_until_free(session.store.path(ref), session.say)  # another command may compute it
    report = None if forced or session.store.find(ref) is None else _reuse(session, call, job)
    seconds, reused = time.perf_counter() - started, report is not None
    if report is None:
        report, seconds = _attempt(session, call, job)
    this = UUID(task_run.id) if task_run.id else None
    return Outcome(call.name, call.purpose, call.round, ref, reused, seconds, report, this)


def _reuse(session: Session, call: Call, job: Job) -> Report | None:
    """Return the report of a finished artifact; None if its run was deleted meanwhile.

    The journal names it under the artifact's lock, where a deletion looks whether one does (gradus.flows.deletion).
    """
    ref, label = Ref.parse(job.output), _label(call, job)
    try:
        session.store.verify(ref, but=session.store.pruned(ref))
        report = read_report(session.store, ref)
    except CorruptArtifactError:
        if (session.store.path(ref) / FILE_NAME).exists():
            raise
        return None
    outside = stage_spec(job.stage).breach(report, call.config)
    with hold(session.store.path(ref), job.run, session.say):
        if session.store.find(ref) is None:
            return None
        if not outside:
            session.journal.stage_reused(**label, inputs=job.inputs)
            return report
    if retries(session.store, ref):
        return _attempt(session, call, replace(job, forced=True))[0]
    attempt = session.journal.stage_started(**label, config=job.recorded, inputs=job.inputs)
    return _checked(session, call, job, attempt, report, 0.0)


def _attempt(session: Session, call: Call, job: Job) -> tuple[Report, float]:
    """Compute the stage; return its report and its seconds, without those in which a worker started."""
    journal = session.journal
    attempt = journal.stage_started(**_label(call, job), config=job.recorded, inputs=job.inputs)
    started = time.perf_counter()
    try:
        report, seconds = _compute(session, call, job)
    except BaseException as error:
        status, message = ending(error)
        journal.stage_finished(attempt, status=status, seconds=time.perf_counter() - started, error=message)
        raise
    return _checked(session, call, job, attempt, report, seconds), seconds


def _label(call: Call, job: Job) -> Label:
    return {"stage": job.stage, "round": call.round, "purpose": call.purpose, "output": job.output}


def _checked(session: Session, call: Call, job: Job, attempt: str, report: Report, seconds: float) -> Report:
    """Write the end of an attempt to the journal and return its report; raise GateError if a limit is breached."""
    sentence = stage_spec(job.stage).breach(report, call.config)
    status = "failed" if sentence else "finished"
    folder = str(session.store.path(Ref.parse(job.output)))
    session.journal.stage_finished(
        attempt, status=status, seconds=seconds, report=report, folder=folder, error=sentence
    )
    if sentence:
        raise GateError(sentence, hint="the rows are kept: with another limit the same command computes nothing again")
    return report


def _compute(session: Session, call: Call, job: Job) -> tuple[Report, float]:
    spec = stage_spec(call.name)
    artifact = ProgressArtifact(spec.name)

    def beat(frac: float, text: str = "") -> None:
        artifact(frac, text)
        session.on_progress(call.label, frac, text)

    beat(0.0, "begun")
    session.gpu.take(call.config)
    worker = worker_of(spec, call.config, separate_sampler=session.separate_sampler)
    if session.separate_sampler and spec.name == "rollout":
        session.pool.prestart("policy")  # what learns from these rollouts is wanted soon
    limits = Limits(wall_s=wall_limit_s())
    if worker:
        job = replace(job, restores=session.restores)
        session.pool.make_ready(worker, spec.name, limits)
    started = time.perf_counter()
    report = session.pool.run(worker, vars(job), limits, beat) if worker else execute(vars(job), Warm(), beat)
    seconds = time.perf_counter() - started
    artifact.done("committed")
    return report, seconds


def worker_of(stage: Stage, config: Config, *, separate_sampler: bool) -> str:
    """Return the process of a stage; `separate_sampler` keeps sampling out of the one that learns meanwhile."""
    kind = stage.worker_for(config)
    return "sampler" if separate_sampler and stage.name == "rollout" and kind == "policy" else kind
