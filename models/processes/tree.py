"""The end of a process with everything that it started."""

import contextlib
import os
import signal
import time

import psutil

STOP_S = 0.5
"""Seconds to wait for a process to stop, before its children are looked for all the same."""
GONE_S = 5.0
"""Seconds to wait for killed processes to end: a busy machine takes some, a broken disk for ever."""
_AGAIN_S = 0.005
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def kill_tree(pid: int) -> None:
    """Kill a process, its process group and every descendant, whatever sessions they made for themselves.

    On return they have ended, but for those that the kernel could not end within `GONE_S`; the process itself is not
    waited for by name: that is its parent's. Not found: a descendant whose own parent had ended before the call.
    """
    family = _stopped_family(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait(family, _ENDED, GONE_S)


def _stopped_family(pid: int) -> list[psutil.Process]:
    """The process and its descendants, stopped, so that none starts another while they are being ended."""
    try:
        root = psutil.Process(pid)
    except psutil.Error:
        return []
    family: list[psutil.Process] = []
    found = [root]
    # A process may have been starting a child as it was stopped: look until none is new.
    while found:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        _wait(found, (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, *_ENDED), STOP_S)
        family += found
        try:
            found = [child for child in root.children(recursive=True) if child not in family]
        except psutil.Error:
            return family
    return family


def _wait(processes: list[psutil.Process], until: tuple[str, ...], limit_s: float) -> None:
    """Wait until each has one of these states or is no more."""
    give_up = time.monotonic() + limit_s
    for process in processes:
        with contextlib.suppress(psutil.Error):
            while process.status() not in until and time.monotonic() < give_up:
                time.sleep(_AGAIN_S)
