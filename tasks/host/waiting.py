"""Commands that wait for each other: for an artifact that another one computes, and for the GPUs of this machine.

    turn = GpuTurn("tiny-1", session.say)
    turn.take(settings)     # before a stage that computes on a GPU; waits while another run has the turn
    turn.end()              # with the run: its stages, one after the other or at once, share one turn

A turn is a lock of the account, which the kernel frees as soon as a run is killed.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from threading import Lock

from gradus.components.settings import Config
from gradus.data.errors import LockedError, UsageError, in_words
from gradus.data.runlock import held, holder
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.settings import gpu_turns, may_wait
from gradus.tasks.host.interrupt import raise_if_interrupted

_POLL_S = 0.2
_SAY_EVERY_S = 5.0


def wait_until_free(folder: Path, say: Callable[[str], None], does: str = "") -> None:
    """Wait while a living process holds the folder, for which it `does` something.

    `say` is called at once and then every few seconds. Raise LockedError if GRADUS_NO_WAIT forbids waiting.
    """
    does = does or f"computes {folder.parent.name}/{folder.name}"
    started, said_s = time.monotonic(), -_SAY_EVERY_S
    while (there := holder(folder)) is not None:
        waited_s = time.monotonic() - started
        who = f"{there.get('command', '?')} (process {there.get('pid', '?')} on {there.get('host', '?')})"
        if not may_wait():
            raise LockedError(f"{who} {does}", hint="leave out --no-wait")
        if waited_s - said_s >= _SAY_EVERY_S:
            say(f"waiting for {who}, which {does}: {waited_s:.0f} s so far")
            said_s = waited_s
        raise_if_interrupted()
        time.sleep(_POLL_S)


def hold(folder: Path, run: str, say: Callable[[str], None], does: str = "") -> AbstractContextManager[None]:
    """Hold a folder for a run, after any other process that holds it, for which it `does` something."""
    return held(folder, lambda: wait_until_free(folder, say, does), command=f"run {run}" if run else "")


class GpuTurn:
    """The turn of one run."""

    def __init__(self, run: str, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._held = ExitStack()
        self._lock = Lock()
        self.taken = False
        """True while the run has the turn."""

    def take(self, settings: Config) -> None:
        """Wait for the turn if a stage of these settings computes on a GPU and the run does not have it yet.

        Raise LockedError if GRADUS_NO_WAIT forbids waiting.
        """
        if not computes_on_gpu(settings):
            return
        with self._lock:
            if not self.taken:
                self._held.enter_context(hold(_folder(), self._run, self._say, "uses the GPUs of this machine"))
            self.taken = True

    def end(self) -> None:
        """Let the next run have the turn."""
        self._held.close()
        self.taken = False


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
