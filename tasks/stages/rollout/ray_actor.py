"""Ray worker: one engine, proved to hold the policy, that samples whole shards.

Ray starts a worker that died again, and repeats the shards that it had not returned.
"""

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.models.engines.base import Engine, EngineError, Finished, Request
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.processes import fault_point
from gradus.tasks.stages.rollout.engines import open_engine
from gradus.tasks.stages.warm import Warm


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


@dataclass(frozen=True)
class _Room:
    """Arguments of `open_engine` in place of a stage."""

    store: Store
    warm: Warm = field(default_factory=Warm)


class SamplingActor:
    """The actor; a finished rollout passes the fault point `ray:NUMBER`, `ray:NUMBER+` after a restart."""

    def __init__(self, number: int, lake: str, policy: str, config: JsonObject) -> None:
        """`number` is the worker's place; lake, policy and settings decide its engine."""
        self._number = number
        self._room = _Room(Store(Path(lake)))
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
        point = f"ray:{self._number}" + "+" * _restarted()
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
        folder = self._room.store.path(self._policy)
        if not folder.is_dir():
            raise BadInputError(
                f"the machine {socket.gethostname()} of the Ray cluster has no {folder}",
                hint="put GRADUS_HOME on a file system that all machines have at the same path",
            )
        return open_engine(self._room, self._policy, self._config)[0]


def _restarted() -> bool:
    return bool(sys.modules["ray"].get_runtime_context().was_current_actor_reconstructed)
