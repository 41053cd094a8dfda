"""Several Ray workers, each with a proved engine of its own, behind the contract of one: each has whole shards.

    with ray_engine(ctx, ctx.one("policy"), config) as (engine, side):
        engine.begin(requests)                          # at once, on the worker with the fewest shards
        for finished in engine.generate(requests): ...  # when that worker has returned all of them

Workers only sample; the stage alone writes. Ray restarts a worker that died and repeats the shards that it had not
returned. Left out: a restart that finds no place because other programs took it, as long as the cluster is large enough
for all workers.

Ray is one of our own on this machine, or an existing cluster. Ours listens on loopback alone, asks for a token, sends
no usage report and keeps its files in a folder that goes with it. Its daemons are killed by the kernel when the thread
that started them ends, its workers end when they miss their daemon, and what is left is ended by the guardian of
gradus.tasks.runtime.worker. Left out: `ray://` addresses (no streams).
"""

import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gradus.data.errors import BadInputError, GradusError, StageError, in_words
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.data.runlock import left_by_the_dead, run_lock
from gradus.models.engines.base import Engine, EngineError, Finished, OnTokens, Request
from gradus.models.errors import first_line
from gradus.models.policy import PromptSide
from gradus.tasks.config.rollout import RayConfig, RolloutConfig
from gradus.tasks.config.settings import thread_settings
from gradus.tasks.host.processes import Warm, fault_point
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.rollout.engines import open_engine, prompt_side

_POLL_S = 0.5
_KEPT = "run the same command again: finished shards are kept"
LOOPBACK = "127.0.0.1"
_PREFIX = "gradus-ray-"
_OBJECT_BYTES = 128 << 20
"""Memory for what passes between stage and workers: requests and finished rollouts, a few hundred at a time."""
_CONNECT_S = 10.0
_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    # Ray remembers its token as long as the process lives, so a process has one.
    "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray replaces 127.0.0.1 by an address that others can reach, unless it takes this for a desktop system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@dataclass(frozen=True)
class Process:
    """A worker's process: its engine, whether that repeats itself, its threads of torch, its machine and number."""

    engine: str
    reproducible: bool
    num_threads: int
    host: str
    pid: int


@dataclass(frozen=True)
class Sampled:
    """Rollouts of one shard, its tokens, deviations of the engine, and the error that ended the shard early."""

    process: Process
    finished: list[Finished]
    num_tokens: int
    remarks: tuple[str, ...]
    error: EngineError | None


class SamplingActor:
    """The actor; a finished rollout passes the fault point `ray:NUMBER`, `ray:NUMBER+` after a restart."""

    def __init__(self, number: int, lake: str, policy: str, config: JsonObject) -> None:
        """`number` is the worker's place; lake, policy and settings decide its engine."""
        self._number = number
        self._store = Store(Path(lake))
        self._policy = Ref.parse(policy)
        self._config = RolloutConfig.model_validate(config)

    def process(self) -> Process:
        """Load the policy and hold the engine's evidence against its files, unless that is done; describe the process.

        Raise the errors of `open_engine`, and BadInputError if this machine does not have the policy.
        """
        engine = self._engine
        return Process(engine.name, engine.reproducible, torch.get_num_threads(), socket.gethostname(), os.getpid())

    def sample(self, requests: Sequence[Request]) -> Sampled:
        """Sample every request once."""
        restarted = bool(sys.modules["ray"].get_runtime_context().was_current_actor_reconstructed)
        point = f"ray:{self._number}" + "+" * restarted
        finished: list[Finished] = []
        sampled, failure = 0, None

        def count(num_tokens: int) -> None:
            nonlocal sampled
            sampled = num_tokens

        try:
            for done in self._engine.generate(requests, count):
                fault_point(point)
                finished.append(done)
        except EngineError as error:
            failure = error
        return Sampled(self.process(), finished, sampled, tuple(self._engine.remarks), failure)

    @cached_property
    def _engine(self) -> Engine:
        folder = self._store.path(self._policy)
        if not folder.is_dir():
            raise BadInputError(
                f"the machine {socket.gethostname()} of the Ray cluster has no {folder}",
                hint="put GRADUS_HOME on a file system that all machines have at the same path",
            )
        return open_engine(self._store, Warm(), self._policy, self._config)[0]


@contextmanager
def ray_engine(ctx: StageContext, ref: Ref, config: RolloutConfig) -> Generator[tuple["RayEngine", PromptSide | None]]:
    """Workers that hold a checkpoint, and what prompts need of it; they and a Ray of our own end with the context."""
    side = prompt_side(ctx.store, ref, config)
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


class RayEngine:
    """The engine contract over several workers; `begin` lets requests be sampled before `generate` asks for them."""

    def __init__(self, ray: ModuleType, config: RayConfig, opening: tuple[str, str, JsonObject]) -> None:
        """`opening` is lake, policy and settings of every worker's engine."""
        self._ray = ray
        self._config = config
        self._opening = opening
        self._actors: list[Any] = []
        self._processes: dict[int, Process] = {}
        self._begun: dict[str, tuple[int, Any]] = {}
        """Worker and answer of shards that are not returned yet, by the first request."""
        self.reproducible = True
        """True if every engine promises the same bits, on this machine and with as many threads as here."""
        self.remarks: list[str] = []
        """Deviations of the engines from their settings, and the workers that were restarted."""

    @property
    def name(self) -> str:
        """The workers' engine, the same in all."""
        return next(iter(self._processes.values())).engine

    def open(self) -> None:
        """Start all workers at once and wait until each has loaded the policy and proved it."""
        options = {
            "num_cpus": self._config.cpus,
            "num_gpus": self._config.gpus,
            "max_restarts": self._config.max_restarts,
            "max_task_retries": -1,
            # As many threads as this process, whatever Ray's default is.
            "runtime_env": {"env_vars": {**thread_settings(), "OMP_NUM_THREADS": str(torch.get_num_threads())}},
        }
        actor = self._ray.remote(SamplingActor).options(**options)
        self._actors = [actor.remote(number + 1, *self._opening) for number in range(self._config.workers)]
        deadline_s = time.monotonic() + self._config.start_s
        for number, opening in enumerate([actor.process.remote() for actor in self._actors]):
            while not self._arrived(opening):
                self._has_place()
                if time.monotonic() > deadline_s:
                    raise self._without_place(f"Ray worker {number + 1} of {self._config.workers} was")
            self._note(number, self._got(number, opening))

    def begin(self, requests: Sequence[Request]) -> None:
        """Have the worker with the fewest shards sample the requests."""
        waiting = [answer for _, answer in self._begun.values()]
        unfinished = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[1] if waiting else []
        busy = [number for number, answer in self._begun.values() if answer in unfinished]
        number = min(range(len(self._actors)), key=busy.count)
        self._begun[requests[0].rollout_id] = number, self._actors[number].sample.remote(requests)

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Return what a worker sampled, once it has every request; EngineError if it died too often."""
        if requests[0].rollout_id not in self._begun:
            self.begin(requests)
        number, answer = self._begun[requests[0].rollout_id]
        without_place_s: float | None = None
        while not self._arrived(answer):
            if on_tokens is not None:
                on_tokens(0)
            now_s = time.monotonic()
            without_place_s = None if self._has_place() else without_place_s or now_s
            if without_place_s and now_s - without_place_s > self._config.start_s:
                raise self._without_place(f"some of the {self._config.workers} Ray workers were")
        sampled: Sampled = self._got(number, answer)
        del self._begun[requests[0].rollout_id]
        self._note(number, sampled.process)
        self.remarks += [remark for remark in sampled.remarks if remark not in self.remarks]
        if on_tokens is not None:
            on_tokens(sampled.num_tokens)
        yield from sampled.finished
        if sampled.error is not None:
            raise sampled.error

    def close(self) -> None:
        """End the workers."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _note(self, number: int, process: Process) -> None:
        """See that a worker is like the others, and whether it was restarted."""
        if self._processes and process.engine != self.name:
            raise StageError(
                f"the Ray worker on {process.host} has {process.engine}, another has {self.name}",
                hint="install the same versions on all machines",
            )
        before = self._processes.get(number, process)
        if (before.host, before.pid) != (process.host, process.pid):
            self.remarks.append(f"Ray worker {number + 1} of {self._config.workers} died and was restarted")
        self._processes[number] = process
        alike = process.host == socket.gethostname() and process.num_threads == torch.get_num_threads()
        self.reproducible &= process.reproducible and alike

    def _has_place(self) -> bool:
        """Return whether the cluster is large enough for all workers; EngineError if no machine is left."""
        if not any(node["Alive"] for node in self._ray.nodes()):
            raise EngineError("no machine of the Ray cluster is left", _KEPT)
        there, wanted = self._ray.cluster_resources(), self._config
        return all(
            each * wanted.workers <= there.get(name, 0) for name, each in (("CPU", wanted.cpus), ("GPU", wanted.gpus))
        )

    def _without_place(self, who: str) -> EngineError:
        there = self._ray.cluster_resources()
        return EngineError(
            f"{who} not ready within ray.start_s = {self._config.start_s:g} s: each asks for "
            f"{self._config.cpus:g} CPUs and {self._config.gpus:g} GPUs, the cluster has {there.get('CPU', 0):g} and "
            f"{there.get('GPU', 0):g} in all",
            f"lower ray.workers, ray.cpus or ray.gpus, or add machines; {_KEPT}",
        )

    def _arrived(self, answer: object) -> bool:
        return bool(self._ray.wait([answer], timeout=_POLL_S)[0])

    def _got(self, number: int, answer: object) -> Any:
        """Return an answer that is there, or raise its error; EngineError if its worker died too often."""
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GradusError):
                raise error.cause from None
            sys.stderr.write(f"{error}\n")  # with the trace from over there, for the log
            raise StageError(f"a Ray worker failed: {in_words(error.cause)}", hint="see the worker's log") from None
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"Ray worker {number + 1} of {self._config.workers} died more often than ray.max_restarts = "
                f"{self._config.max_restarts}: {first_line(error).rstrip('.')}",
                f"if memory ran out, lower ray.workers, batch_rows or max_tokens; {_KEPT}",
            ) from None


def cluster(config: RayConfig) -> AbstractContextManager[ModuleType]:
    """Connect to the cluster at `address`, or start a local one for the duration of the context.

    Raise StageError if the package is missing, the cluster cannot be reached, or this machine lacks the accelerators.
    """
    return _joined(config.address) if config.address else _own(config)


@contextmanager
def _own(config: RayConfig) -> Generator[ModuleType]:
    os.environ.update(_SETTINGS)
    ray = _imported()
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):  # of processes that were killed
        with suppress(OSError):  # of another account
            if left_by_the_dead(left):
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name, run_lock(Path(name)):
        try:
            _start(ray, Path(name), config)
            yield ray
        finally:
            ray.shutdown()


def _start(ray: ModuleType, folder: Path, config: RayConfig) -> None:
    for again in (True, False):  # on a busy machine the second start finds the files in memory
        try:
            ray.init(
                address="local",
                num_cpus=math.ceil(config.workers * config.cpus),
                include_dashboard=False,
                object_store_memory=_OBJECT_BYTES,
                configure_logging=False,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder),
                _system_config={"worker_niceness": 0},
            )
            break
        except Exception as error:  # noqa: BLE001 - Ray raises a plain Exception after the 30 s that it waits for itself
            if not (again and "timed out" in str(error)):
                said = first_line(error).rstrip(".")
                raise StageError(f"Ray did not start: {said}", hint="fix that, or leave out ray.workers") from None
            ray.shutdown()
    listens_on = {node["NodeManagerAddress"] for node in ray.nodes()}
    if listens_on != {LOOPBACK}:
        raise StageError(f"Ray listens on {', '.join(sorted(listens_on))}, not on {LOOPBACK} alone; it was ended")
    there, wanted = ray.cluster_resources().get("GPU", 0), config.workers * config.gpus
    if wanted > there:
        raise StageError(
            f"{config.workers} workers with ray.gpus = {config.gpus:g} want {wanted:g} GPUs; Ray sees {there:g} here",
            hint="lower ray.workers or ray.gpus",
        )


@contextmanager
def _joined(address: str) -> Generator[ModuleType]:
    ray = _imported()
    host, _, port = address.rpartition(":")
    hint = "start it (`ray start --head`), or correct ray.address"
    try:
        if port.isdigit():
            # Ray itself waits for minutes and then ends the process.
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(address=address, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise StageError(f"no Ray cluster at {address}: {first_line(error).rstrip('.')}", hint=hint) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _imported() -> ModuleType:
    try:
        import ray  # noqa: PLC0415 - an extra, and read by it: the environment of this moment
    except ModuleNotFoundError:
        raise StageError("the package ray is not installed", hint="pip install 'gradus[ray]'") from None
    return ray
