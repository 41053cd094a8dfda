"""Two commands that need the same artifact: one computes it, the other waits, says for which run, and reuses it."""

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path

from gradus.data.errors import LockedError
from gradus.data.runlock import held, holder
from gradus.tasks.config.settings import may_wait
from gradus.tasks.host.interrupt import raise_if_interrupted

_POLL_S = 0.2
_SAY_EVERY_S = 5.0


def wait_until_free(folder: Path, say: Callable[[str], None], does: str = "") -> float:
    """Wait while a living process holds the folder, for which it `does` something; return the seconds waited.

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
    return time.monotonic() - started


@contextlib.contextmanager
def hold(folder: Path, run: str, say: Callable[[str], None], does: str = "") -> Generator[None]:
    """Hold a folder for a run, after any other process that holds it, for which it `does` something."""
    with held(folder, lambda: wait_until_free(folder, say, does), command=f"run {run}" if run else ""):
        yield
