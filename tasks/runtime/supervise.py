"""Stages in child processes that can be killed for certain, and stay warm between the rounds of a run.

    with WorkerPool(logs, env={}) as pool:
        report = pool.run("policy", job, Limits(wall_s=3600), on_beat)

Every worker has a process session of its own. It is killed with all its descendants at the wall limit, when it falls
silent, on Ctrl-C and at the end; it dies by itself when this process dies. A dead worker is replaced at the next job.
Threads may use the workers of several kinds at once; those of one kind wait for each other.

    with keeping_workers():
        for training in trainings:
            train(training)      # its pool takes the worker that the last one left, so as not to import PyTorch again

A worker is kept only if it runs none of a user's code and no other process, and its run took no turn on a GPU: memory
of a GPU is for whoever has the next turn.
"""

import contextlib
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.data.errors import GradusError, StageError
from gradus.models.judging.folders import remove_folders
from gradus.models.processes.child import Child, kill_tree
from gradus.tasks.host.interrupt import raise_if_interrupted
from gradus.tasks.host.processes import child_environment, known_error, last_words, open_log
from gradus.tasks.runs.records import Report

OnBeat = Callable[[float, str], None]
MOVE_S = 10.0
"""Seconds in which an idle worker is with another run."""
_SETTLE_S = 5.0
"""Seconds in which a worker that has closed its pipe exits, with the memory of its GPU."""

PRELOAD = {
    "policy": "gradus.tasks.stages.rollout.stage,gradus.tasks.stages.update.stage",
    "sampler": "gradus.tasks.stages.rollout.stage",
    "engine": "gradus.tasks.stages.rollout.stage",
    "score": "gradus.tasks.stages.score.stage",
}
"""Modules that a kind of worker imports before its first job."""

MadeOf = tuple[str, str, tuple[tuple[str, str], ...]]
"""Kind, function that executes jobs, and environment of a worker."""


@dataclass(frozen=True)
class Limits:
    """Time limits of a worker (seconds): one job in all, without a sign of life, and to start."""

    wall_s: float = 24 * 3600.0
    silence_s: float = 120.0
    start_s: float = 300.0


class HaltedError(StageError):
    """The work was ended because what ran beside it failed or was stopped."""


class _DeathError(StageError):
    """The child ended without an answer."""


class _IdleDeathError(_DeathError):
    """A warm worker that was dead before it took its next job; nothing of the job was begun."""


class Worker(Child):
    """One child process that does jobs, and the pipe to it."""

    def __init__(self, made_of: MadeOf, log_path: Path) -> None:
        self.made_of = made_of
        self.kind, execute, environment = made_of
        self.log_path = log_path
        command = [sys.executable, "-P", "-m", "gradus.tasks.runtime.worker", execute, PRELOAD.get(self.kind, "")]
        with open_log(log_path) as log:
            self._log_start = log.tell()
            environment = {**dict(environment), "GRADUS_RUN_LOGS": str(log_path.parent)}
            super().__init__(command, env=environment, output=log, errors=log)
        self._heard: deque[dict[str, Any]] = deque()
        self.is_ready = False
        """True once the child has started and takes jobs."""

    def run(self, job: Mapping[str, object], limits: Limits, on_beat: OnBeat) -> Report:
        """Do one job; the child's error as the typed error it was, StageError if the child itself failed."""
        stage = str(job.get("stage", "?"))
        try:
            self.make_ready(stage, limits)
            self.send(job)  # _receive reports a dead child
            try:
                self._receive(stage, limits.wall_s, limits.silence_s, on_beat, "taken")
            except _DeathError as death:
                raise _IdleDeathError(death.message, hint=death.hint) from None
            return self._receive(stage, limits.wall_s, limits.silence_s, on_beat, "done")["result"]
        except GradusError:
            raise
        except BaseException:
            self.close()
            raise

    def make_ready(self, stage: str, limits: Limits) -> None:
        """Wait until the child has started; `stage` is named if it does not."""
        if not self.is_ready:
            self._receive(stage, limits.start_s, limits.start_s, lambda _frac, _text: None, "ready")
            self.is_ready = True

    def move(self, log_path: Path) -> bool:
        """Continue as a new worker that writes to this log; return whether the child can."""
        with open_log(log_path) as log:
            self._log_start = log.tell()
        self.log_path = log_path
        try:
            self.run({"stage": "move", "log": str(log_path)}, Limits(wall_s=MOVE_S), lambda _frac, _text: None)
        except StageError:
            return False
        return True

    def kill(self) -> None:
        """End the child from another thread than the one that waits for it; that one then hears of its death."""
        if self.alive:
            kill_tree(self.pid)

    def close(self) -> None:
        """End the child and everything it started."""
        self.end()
        remove_folders(self.pid)

    def _receive(self, stage: str, wall_s: float, silence_s: float, on_beat: OnBeat, until: str) -> dict[str, Any]:
        deadline = time.monotonic() + wall_s
        while True:
            message = self._next_message(min(silence_s, max(0.0, deadline - time.monotonic())))
            raise_if_interrupted()
            kind = message["kind"] if message else ""
            if kind == until:
                return message
            if kind == "beat":
                on_beat(message["frac"], message["text"])
            elif kind == "error":
                hint = message["hint"] or f"see {self.log_path}; then repeat the command"
                raise known_error(message) or StageError(f"stage {stage} failed: {message['message']}", hint=hint)
            if time.monotonic() >= deadline:
                self.close()
                raise StageError(
                    f"stage {stage} took longer than its limit of {wall_s:g} s and was ended",
                    hint="raise GRADUS_STAGE_LIMIT_S, then repeat the command: finished shards are kept",
                )
            if not message:
                self.close()
                raise StageError(
                    f"stage {stage} gave no sign of life for {silence_s:g} s and was ended; see {self.log_path}",
                    hint="repeat the command: finished shards are kept",
                )

    def _next_message(self, timeout_s: float) -> dict[str, Any]:
        """The next message of the child; empty when none comes in time."""
        until = time.monotonic() + timeout_s
        while not self._heard:
            if self.closed:
                raise self._death()
            if not self.wait(until - time.monotonic()):
                return {}
            self._heard += self.receive()
        return self._heard.popleft()

    def _death(self) -> "_DeathError":
        self.settle(_SETTLE_S)
        code = self.end()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        cause = " (out of memory?)" if code == -signal.SIGKILL else ""
        tail = last_words(self.log_path, self._log_start)
        last = f"; its last words: {tail[:200]}" if tail else ""
        return _DeathError(
            f"the {self.kind} worker {how}{cause}{last}",
            hint=f"see {self.log_path}; repeat the command: finished shards are kept",
        )


class KeptWorkers:
    """At most one idle worker of a kind, and the thread that makes workers, with which they end."""

    def __init__(self) -> None:
        self.maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradus-workers")
        self._idle: dict[str, Worker] = {}

    def take(self, made_of: MadeOf, log_path: Path) -> Worker | None:
        """Return a worker that was made like this and continues with the log of another run; None if there is none."""
        worker = self._idle.pop(made_of[0], None)
        if worker is not None and not (worker.made_of == made_of and worker.move(log_path)):
            worker.close()
            return None
        return worker

    def leave(self, worker: Worker) -> None:
        """Keep a worker that has no job."""
        before, self._idle[worker.kind] = self._idle.get(worker.kind), worker
        if before is not None:
            before.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self._idle.values():
            worker.close()
        self.maker.shutdown()


kept_workers: ContextVar[KeptWorkers | None] = ContextVar("kept_workers", default=None)
"""Workers that are kept from run to run here; None outside of `keeping_workers`."""


@contextlib.contextmanager
def keeping_workers() -> Generator[None]:
    """Keep workers from run to run in this block."""
    with contextlib.closing(KeptWorkers()) as kept:
        token = kept_workers.set(kept)
        try:
            yield
        finally:
            kept_workers.reset(token)


class WorkerPool:
    """At most one warm worker of each kind; a context manager.

    With `kept`, workers come from there, and are left there unless an error, or `keep_none`, ends them.
    """

    def __init__(
        self,
        logs: Path,
        env: Mapping[str, str] | None = None,
        execute: str = "gradus.tasks.runtime.calls:execute",
        kept: KeptWorkers | None = None,
    ) -> None:
        self._logs = logs
        self._kept = kept
        self._env = dict(env or {})
        self._execute = execute
        self._workers: dict[str, Worker] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._halted = threading.Event()
        # Linux kills a child with the thread that made it, so one thread makes them all and lives as long as the pool.
        self._own_maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradus-workers")
        self._maker = self._own_maker if kept is None else kept.maker

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None or self._halted.is_set():
            self.keep_none()
        self.close()

    def keep_none(self) -> None:
        """End this pool's workers with it."""
        self._kept = None

    def prestart(self, kind: str) -> None:
        """Begin to start a worker where there is none, so that its imports overlap with other work; never waits."""
        lock = self._lock(kind)
        if lock.acquire(blocking=False):
            try:
                self._worker(kind)
            finally:
                lock.release()

    def make_ready(self, kind: str, stage: str, limits: Limits) -> None:
        """Wait until there is a worker of that kind that takes jobs, so that a job's time is its own."""
        with self._turn(kind):
            self._worker(kind).make_ready(stage, limits)

    def run(self, kind: str, job: Mapping[str, object], limits: Limits, on_beat: OnBeat) -> Report:
        """Do one job in the worker of that kind, started or replaced if need be; HaltedError once `halt` was called."""
        with self._turn(kind):
            try:
                return self._worker(kind).run(job, limits, on_beat)
            except _IdleDeathError:
                # A process that is being killed still counts as running until its last thread has ended.
                return self._replaced(kind).run(job, limits, on_beat)

    def halt(self) -> None:
        """End every worker and take no more jobs; waiting callers get HaltedError. Thread-safe."""
        self._halted.set()
        for worker in tuple(self._workers.values()):
            worker.kill()

    def raise_if_halted(self) -> None:
        """Raise HaltedError once `halt` was called."""
        if self._halted.is_set():
            raise HaltedError("ended, because what ran beside it did not end well") from None

    def close(self) -> None:
        """End all workers, one that is being made too."""
        with contextlib.suppress(RuntimeError):  # closed before
            self._maker.submit(int).result()
        for worker in self._workers.values():
            if self._kept is not None and worker.is_ready and worker.alive:
                self._kept.leave(worker)
            else:
                worker.close()
        self._workers.clear()
        self._own_maker.shutdown()

    def _lock(self, kind: str) -> threading.Lock:
        return self._locks.setdefault(kind, threading.Lock())

    @contextlib.contextmanager
    def _turn(self, kind: str) -> Generator[None]:
        """Have the workers of a kind alone; one that `halt` ended is HaltedError."""
        with self._lock(kind):
            try:
                yield
            except _DeathError:
                self.raise_if_halted()
                raise

    def _worker(self, kind: str) -> Worker:
        worker = self._workers.get(kind)
        return worker if worker is not None and worker.alive else self._replaced(kind)

    def _replaced(self, kind: str) -> Worker:
        dead = self._workers.pop(kind, None)
        if dead is not None:
            dead.close()
        return self._maker.submit(self._made, kind).result()

    def _made(self, kind: str) -> Worker:
        """Start a worker, which is known even if Ctrl-C interrupts the thread that waits for it."""
        log, environment = self._logs / f"{kind}.log", tuple(sorted(child_environment(self._env).items()))
        made_of = (kind, self._execute, environment)
        kept = self._kept.take(made_of, log) if self._kept is not None else None
        worker = self._workers[kind] = kept or Worker(made_of, log)
        if self._halted.is_set():  # looked at after the worker is known: either `halt` ends it or this does
            worker.kill()
        return worker
