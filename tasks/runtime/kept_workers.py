"""Workers that outlive a run: what the trainings of a comparison share, so that each need not import PyTorch again.

    with keeping_workers():
        for training in trainings:
            train(training)      # its pool takes the worker that the last one left, if there is one

A worker is kept only if it runs none of a user's code and no other process, and its run took no turn on a GPU: memory
of a GPU is for whoever has the next turn.
"""

import contextlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradus.tasks.runtime.supervise import Worker

MadeOf = tuple[str, str, tuple[tuple[str, str], ...]]
"""Kind, function that executes jobs, and environment of a worker."""


class KeptWorkers:
    """At most one idle worker of a kind, and the thread that makes workers, with which they end."""

    def __init__(self) -> None:
        self.maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradus-workers")
        self._idle: dict[str, Worker] = {}

    def take(self, made_of: MadeOf, log_path: Path) -> "Worker | None":
        """Return a worker that was made like this and continues with the log of another run; None if there is none."""
        worker = self._idle.pop(made_of[0], None)
        if worker is not None and not (worker.made_of == made_of and worker.move(log_path)):
            worker.close()
            return None
        return worker

    def leave(self, worker: "Worker") -> None:
        """Keep a worker that has no job."""
        before, self._idle[worker.kind] = self._idle.get(worker.kind), worker
        if before is not None:
            before.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self._idle.values():
            worker.close()
        self.maker.shutdown()


_kept: ContextVar[KeptWorkers | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping_workers() -> Generator[None]:
    """Keep workers from run to run in this block."""
    with contextlib.closing(KeptWorkers()) as kept:
        token = _kept.set(kept)
        try:
            yield
        finally:
            _kept.reset(token)


def kept_workers() -> KeptWorkers | None:
    """Return what keeps workers here, if anything does."""
    return _kept.get()
