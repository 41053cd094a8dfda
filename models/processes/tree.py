"""The end of a process with everything that it started, its working folders too."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import psutil

STOP_S = 0.5
"""Seconds to wait for a process to stop, before its children are looked for all the same."""
GONE_S = 5.0
"""Seconds to wait for killed processes to end: a busy machine takes some, a broken disk for ever."""
_AGAIN_S = 0.005
_PREFIX = "gradus-judge-"
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


def make_folder() -> Path:
    """Return a new folder for one child of this process: what hostile code leaves there no other child sees."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_folders(pid: int) -> None:
    """Remove the folders of the children that a process started; call it once that process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)
