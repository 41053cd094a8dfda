"""Ray worker: one engine, proved to hold the policy, that samples the requests it receives and returns the rollouts.

Errors travel as plain data, so that the stage raises them as it would have raised its own.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gradus.data.errors import BadInputError, GradusError
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.models.engines.base import Engine, EngineError, Finished, Request
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.faults import fault_point
from gradus.tasks.stages.rollout.engines import open_engine
from gradus.tasks.stages.warm import Warm

_SEND_S = 0.5


@dataclass(frozen=True)
class Opened:
    """A worker that can begin: its engine, whether that repeats itself, its threads of torch and its machine."""

    engine: str
    reproducible: bool
    num_threads: int
    host: str


@dataclass(frozen=True)
class FinishedChunk:
    """Rollouts finished since the last chunk, the tokens sampled so far, and deviations of the engine."""

    finished: list[Finished]
    num_tokens: int
    reproducible: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """An error as its type's name, its sentence and what to do."""

    kind: str
    message: str
    hint: str


@dataclass(frozen=True)
class _Room:
    """Arguments of `open_engine` in place of a stage."""

    store: Store
    warm: Warm = field(default_factory=Warm)


class SamplingActor:
    """The actor; `label` names it at the fault point `ray:LABEL`, passed before a finished rollout is sent."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._engine: Engine | None = None
        self._send_s = _SEND_S

    def open(self, lake: str, policy: str, config: JsonObject) -> Opened | Failure:
        """Load the policy of a lake and hold the engine's evidence against its files."""
        store, ref, settings = Store(Path(lake)), Ref.parse(policy), RolloutConfig.model_validate(config)
        self._send_s = min(_SEND_S, settings.flush_s)
        try:
            if not store.path(ref).is_dir():
                raise BadInputError(
                    f"the machine {socket.gethostname()} of the Ray cluster has no {store.path(ref)}",
                    hint="put GRADUS_HOME on a file system that all machines have at the same path",
                )
            self._engine, _ = open_engine(_Room(store), ref, settings)
        except GradusError as error:
            return Failure(type(error).__name__, error.message, error.hint)
        return Opened(self._engine.name, self._engine.reproducible, torch.get_num_threads(), socket.gethostname())

    def sample(self, requests: Sequence[Request]) -> Iterator[FinishedChunk | Failure]:
        """Every request once, in chunks of half a second at most; a Failure ends the stream."""
        assert self._engine is not None
        finished: list[Finished] = []
        sampled, sent_s = 0, time.monotonic()

        def count(num_tokens: int) -> None:
            nonlocal sampled
            sampled = num_tokens

        try:
            for done in self._engine.generate(requests, count):
                fault_point(f"ray:{self._label}")
                finished.append(done)
                if time.monotonic() - sent_s >= self._send_s:
                    yield self._chunk(finished, sampled)
                    finished, sent_s = [], time.monotonic()
            yield self._chunk(finished, sampled)
        except EngineError as error:
            yield self._chunk(finished, sampled)
            yield Failure(type(error).__name__, str(error), error.hint)

    def _chunk(self, finished: list[Finished], num_tokens: int) -> FinishedChunk:
        assert self._engine is not None
        return FinishedChunk(finished, num_tokens, self._engine.reproducible, tuple(self._engine.remarks))
