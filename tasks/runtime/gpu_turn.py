"""A run's turn on the GPUs of this machine: a lock of the account, which the kernel frees as soon as a run is killed.

turn = GpuTurn("tiny-1", session.say)
turn.take(settings)     # before a stage that computes on a GPU; waits while another run has the turn
turn.end()              # with the run: its stages, one after the other or at once, share one turn
"""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

from gradus.components.settings import Config
from gradus.data.errors import UsageError, in_words
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.settings import gpu_turns
from gradus.tasks.host.waiting import hold


class GpuTurn:
    """The turn of one run."""

    def __init__(self, run: str, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._held = ExitStack()
        self._taken = False
        self._lock = Lock()

    @property
    def taken(self) -> bool:
        """Return whether the run has the turn."""
        return self._taken

    def take(self, settings: Config) -> None:
        """Wait for the turn if a stage of these settings computes on a GPU and the run does not have it yet.

        Raise LockedError if GRADUS_NO_WAIT forbids waiting.
        """
        if not computes_on_gpu(settings):
            return
        with self._lock:
            if not self._taken:
                self._held.enter_context(hold(_folder(), self._run, self._say, "uses the GPUs of this machine"))
            self._taken = True

    def end(self) -> None:
        """Let the next run have the turn."""
        self._held.close()
        self._taken = False


def computes_on_gpu(settings: Config) -> bool:
    """Return whether a stage of these settings computes on a GPU of this machine, as far as known without torch."""
    match settings:
        case RolloutConfig(engine="openai"):
            return False
        case RolloutConfig(device=device) | UpdateConfig(device=device) | WarmstartConfig(device=device):
            wanted = gpu_turns()
            return device != "cpu" and (wanted == "on" or (wanted == "auto" and any(Path("/dev").glob("nvidia[0-9]*"))))
        case _:
            return False


def _folder() -> Path:
    """Return the folder of the lock: one for all homes of an account; named by host, since a home may be on a share."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradus" / f"gpu-{socket.gethostname()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"runs cannot take turns on the GPUs: {in_words(error).message}",
            hint="set XDG_CACHE_HOME to a folder you can write, or GRADUS_GPU_TURNS=off",
        ) from None
    return folder
