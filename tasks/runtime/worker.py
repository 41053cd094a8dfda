"""The child process that stages run in: jobs in and answers out over one pipe, dead as soon as its parent is.

    python -m gradus.tasks.runtime.worker module:function module,module     # executes jobs; imported before them

It sends {"kind": "ready"} once and then, for every job, "taken", "beat" with `frac` and `text`, and "done" with the
`result`, or "error" (gradus.tasks.host.processes); "alive" in between. What a library prints goes to the log.
The heart-beat comes from a thread of its own; a stage that holds the interpreter lock for good silences it, and the
parent then ends the process. Covered: death of the parent, or of this process, by any means. Not covered: a child that
leaves the session, which the parent's kill_tree finds by its descent while both live.
"""

import contextlib
import ctypes
import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

import psutil

from gradus.data.errors import StageError
from gradus.models.judging.folders import remove_folders
from gradus.models.processes.parent import Parent
from gradus.tasks.config.redaction import hide_in_logs, hide_in_output
from gradus.tasks.host.libraries import lean_imports
from gradus.tasks.host.processes import Warm, die_with_parent, failed, open_log
from gradus.tasks.runs.records import Report

HEARTBEAT_S = 2.0
_AGAIN_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36

Job = Mapping[str, Any]
"""The fields of gradus.tasks.runtime.calls.Job."""

Executor = Callable[[Job, Warm, Callable[..., None]], Report]


def main() -> None:
    """Serve jobs until the parent closes the pipe."""
    executor, preloaded = sys.argv[1:]
    guardian = _leave_guardian()
    parent = Parent()
    cast("TextIOWrapper", sys.stdout).reconfigure(encoding="utf-8")
    hide_in_logs()
    hide_in_output()
    die_with_parent(os.getppid())
    if sys.platform == "linux":  # orphans are adopted, so that they are still found by descent
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_heartbeat, args=(parent,), daemon=True).start()
    jobs = parent.incoming()
    # transformers imports these, a fifth of its own import, for assisted decoding and for models of images.
    with lean_imports("pandas", "scipy", "sklearn"):
        for name in filter(None, preloaded.split(",")):
            importlib.import_module(name)
    module, _, function = executor.partition(":")
    execute: Executor = getattr(importlib.import_module(module), function)
    parent.send({"kind": "ready"})
    warm = Warm()
    while True:
        job = jobs.get()
        if "log" in job:
            warm = Warm()
        _work(partial(_move, guardian) if "log" in job else execute, job, warm, parent)


def _move(guardian: int, job: Job, *_: object) -> Report:
    """Write to the log of another run; StageError if this process has a user's code, or children with the old log."""
    loading = sys.modules.get("gradus.tasks.identity.loading")  # not there if no component was loaded
    children = [child for child in psutil.Process().children() if child.pid != guardian]
    if children or (loading is not None and loading.has_users_code()):
        raise StageError("this worker cannot leave its run")
    os.environ["GRADUS_RUN_LOGS"] = str(Path(job["log"]).parent)
    with open_log(Path(job["log"])) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    return {}


def _work(execute: Executor, job: Job, warm: Warm, parent: Parent) -> None:
    def beat(frac: float, text: str = "") -> None:
        parent.send({"kind": "beat", "frac": frac, "text": text})

    parent.send({"kind": "taken"})
    try:
        parent.send({"kind": "done", "result": execute(job, warm, beat)})
    except Exception as error:  # noqa: BLE001 - whatever a stage raises must reach the parent
        traceback.print_exc()
        parent.send(failed(error))


def _heartbeat(parent: Parent) -> None:
    while True:
        time.sleep(HEARTBEAT_S)
        parent.send({"kind": "alive"})


def _leave_guardian() -> int:
    """Linux: fork a process that waits for this one's death, then ends what is left of its session and its folders.

    Return its process id, 0 if there is none.

    An engine's own processes, or Ray's, which make groups of their own, would outlive a worker that is killed, with
    the accelerator's memory. Called first of all, while there is one thread and little memory to share.
    """
    worker = os.getpid()
    if not hasattr(os, "pidfd_open") or os.getpgid(0) != worker:
        return 0
    if guardian := os.fork():
        return guardian
    try:
        os.setsid()
        watched = os.pidfd_open(worker)
        for descriptor in range(3):
            os.close(descriptor)  # the pipe is the worker's alone: its end is how its death is noticed
        select.select([watched], [], [])
        while left := _living(worker):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(_AGAIN_S)  # what they had begun to start meanwhile
        remove_folders(worker)
    finally:
        os._exit(0)  # whatever went wrong, this must not continue as a second worker


def _living(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - pathlib was not imported for this
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            # After the name in brackets, which may hold anything: state, parent, group, session.
            state, _, _, of = file.read().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(name))
    return found


if __name__ == "__main__":
    main()
