"""Several workers, each with an engine of its own, behind the contract of one: they are handed whole shards.

    with ray_engine(ctx, ctx.one("policy"), config) as (engine, side):
        engine.each(make_shard, shards)                 # as many at once as there are workers

Workers only sample; the stage alone writes. A worker that dies is replaced and its requests are repeated: all
of them if the engine repeats itself to the bit (earlier answers are then the same), otherwise the missing ones.
"""

import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVarTuple

import torch

from gradus.data import errors
from gradus.data.errors import StageError, in_words
from gradus.data.lake.store import Ref
from gradus.data.records import JsonObject
from gradus.models.engines.base import EngineError, Finished, OnTokens, Request
from gradus.models.errors import first_line
from gradus.models.policy import PromptSide
from gradus.tasks.config.rollout import RayConfig, RolloutConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.rollout.engines import prompt_side
from gradus.tasks.stages.rollout.ray_actor import Failure, Opened, SamplingActor
from gradus.tasks.stages.rollout.ray_cluster import cluster

Ts = TypeVarTuple("Ts")

_POLL_S = 0.5
_KEPT = "run the same command again: finished shards are kept"


@contextmanager
def ray_engine(ctx: StageContext, ref: Ref, config: RolloutConfig) -> Generator[tuple["RayEngine", PromptSide | None]]:
    """Workers that hold a checkpoint, and what prompts need of it; they and a Ray of our own end with the context."""
    side = prompt_side(ctx, ref, config)
    with cluster(config.ray) as ray:
        ctx.beat(0.0, f"starting {config.ray.workers} Ray workers")
        engine = RayEngine(ray, config.ray, (str(ctx.store.root), str(ref), config.model_dump(mode="json")))
        try:
            try:
                engine.open()
            except EngineError as error:
                raise StageError(str(error), hint=error.hint) from None
            yield engine, side
        finally:
            engine.close()


class _DeathError(Exception):
    """The worker is gone; its message says what Ray knows of it."""


@dataclass
class _Worker:
    """A worker slot: its current actor and how often it was restarted."""

    number: int
    actor: Any = None
    deaths: int = 0


class RayEngine:
    """The engine contract over several workers; `generate` is called inside `each`, by as many threads as workers."""

    def __init__(self, ray: ModuleType, config: RayConfig, opening: tuple[str, str, JsonObject]) -> None:
        """`opening` is what every worker is opened with: lake, policy and settings."""
        self._ray = ray
        self._config = config
        self._opening = opening
        self._workers = [_Worker(number) for number in range(1, config.workers + 1)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._name = ""
        self._reproducible = True
        self._remarks: list[str] = []

    @property
    def name(self) -> str:
        """The workers' engine, the same in all."""
        return self._name

    @property
    def reproducible(self) -> bool:
        """Return whether every engine promises the same bits, on this machine and with as many threads as here."""
        return self._reproducible

    @property
    def remarks(self) -> Sequence[str]:
        """Return the deviations of the engines from their settings, and the workers that were replaced."""
        return tuple(self._remarks)

    def open(self) -> None:
        """Start all workers at once and wait until each has loaded the policy and proved it."""
        for worker in self._workers:
            self._make(worker)
        with self._turn:
            for worker in self._workers:
                try:
                    self._open(worker)
                except _DeathError as death:
                    self._replace(worker, death)
                self._idle.put(worker)

    def each(self, do: Callable[[*Ts], None], items: Iterable[tuple[*Ts]]) -> None:
        """Call `do` with every item, as many at once as there are workers; the first error ends all.

        Only one of them computes at a time, so `do` and `items` need no locks: a call yields its turn while
        `generate` waits for a worker.
        """
        shared = iter(items)
        with ThreadPoolExecutor(len(self._workers), thread_name_prefix="gradus-ray") as pool:
            running = [pool.submit(self._some, do, shared) for _ in self._workers]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                self._stopping.set()
                raise

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Sample every request once on an idle worker, replaced if it dies; EngineError after too many deaths."""
        worker = self._idle.get_nowait()
        answered: set[int] = set()
        try:
            while len(answered) < len(requests):
                wanted = [i for i in range(len(requests)) if self._reproducible or i not in answered]
                try:
                    for done in self._asked(worker, [requests[i] for i in wanted], on_tokens):
                        index = wanted[done.index]
                        if index not in answered:
                            answered.add(index)
                            yield replace(done, index=index)
                    return
                except _DeathError as death:
                    self._replace(worker, death)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            if worker.actor is not None:
                self._ray.kill(worker.actor)
                worker.actor = None

    def _some(self, do: Callable[[*Ts], None], items: Iterator[tuple[*Ts]]) -> None:
        with self._turn:
            for item in items:
                if self._stopping.is_set():
                    return
                do(*item)

    def _asked(self, worker: _Worker, requests: list[Request], on_tokens: OnTokens | None) -> Iterator[Finished]:
        """Return the next result of one worker; _DeathError if it is gone before the end."""
        stream = worker.actor.sample.options(num_returns="streaming").remote(requests)
        num_tokens = 0
        while True:
            while not self._arrived(stream):
                if on_tokens is not None:
                    on_tokens(num_tokens)
            try:
                chunk = self._got(next(stream))
            except StopIteration:
                return
            if isinstance(chunk, Failure):
                raise EngineError(chunk.message, chunk.hint)
            num_tokens = chunk.num_tokens
            self._reproducible &= chunk.reproducible
            self._remarks += [remark for remark in chunk.remarks if remark not in self._remarks]
            yield from chunk.finished

    def _replace(self, worker: _Worker, death: _DeathError) -> None:
        """Return an opened actor in place of a dead one; EngineError after too many deaths."""
        while True:
            self._ray.kill(worker.actor)  # an unreachable actor may still be running
            worker.deaths += 1
            event = f"Ray worker {worker.number} of {len(self._workers)} died"
            if worker.deaths > self._config.max_restarts:
                raise EngineError(
                    f"{event} {worker.deaths} times, more than ray.max_restarts = {self._config.max_restarts}: {death}",
                    f"if memory ran out, lower ray.workers, batch_rows or max_tokens; {_KEPT}",
                )
            self._remarks.append(f"{event} and was replaced: {death}")
            self._make(worker)
            try:
                return self._open(worker)
            except _DeathError as another:
                death = another

    def _make(self, worker: _Worker) -> None:
        """Ask Ray for an actor; it computes with as many threads as this process, whatever Ray's default is."""
        options = {
            "num_cpus": self._config.cpus,
            "num_gpus": self._config.gpus,
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(torch.get_num_threads())}},
        }
        label = f"{worker.number}.{worker.deaths}"
        worker.actor = self._ray.remote(SamplingActor).options(**options).remote(label)

    def _open(self, worker: _Worker) -> None:
        """Wait until a worker has its place and its engine, and see that it is like the others."""
        opening = worker.actor.open.remote(*self._opening)
        deadline = time.monotonic() + self._config.start_s
        while not self._arrived(opening):
            if not any(node["Alive"] for node in self._ray.nodes()):
                raise EngineError("no machine of the Ray cluster is left", _KEPT)
            if time.monotonic() > deadline:
                there = self._ray.cluster_resources()
                raise EngineError(
                    f"Ray worker {worker.number} of {len(self._workers)} was not ready within ray.start_s = "
                    f"{self._config.start_s:g} s: each asks for {self._config.cpus:g} CPUs and {self._config.gpus:g} "
                    f"GPUs, the cluster has {there.get('CPU', 0):g} and {there.get('GPU', 0):g} in all",
                    "lower ray.workers, ray.cpus or ray.gpus, or add machines",
                )
        opened: Opened | Failure = self._got(opening)
        if isinstance(opened, Failure):
            raise getattr(errors, opened.kind)(opened.message, hint=opened.hint)
        if self._name and opened.engine != self._name:
            raise StageError(
                f"the Ray worker on {opened.host} has {opened.engine}, another has {self._name}",
                hint="install the same versions on all machines",
            )
        self._name = opened.engine
        alike = opened.host == socket.gethostname() and opened.num_threads == torch.get_num_threads()
        self._reproducible &= opened.reproducible and alike

    def _arrived(self, awaited: object) -> bool:
        """Return whether an answer is there, after half a second at most, in which others have their turn."""
        if self._stopping.is_set():
            raise EngineError("another Ray worker failed", _KEPT)
        self._turn.release()
        try:
            ready, _ = self._ray.wait([awaited], timeout=_POLL_S)
        finally:
            self._turn.acquire()
        return bool(ready)

    def _got(self, ref: object) -> Any:
        """An answer that is there; _DeathError if its worker died before."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            sys.stderr.write(f"{error}\n")  # with the trace from over there, for the log
            raise StageError(f"a Ray worker failed: {in_words(error.cause)}", hint="see the worker's log") from None
        except self._ray.exceptions.RayError as error:
            raise _DeathError(first_line(error).rstrip(".")) from None
