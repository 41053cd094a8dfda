"""The child process that stages run in: jobs in and answers out as JSON lines, dead as soon as its parent is.

    python -m gradus.tasks.runtime.worker [--execute module:function] [--preload module,module]

What a library prints goes to the log file that the parent gave as stdout and stderr, never into the protocol.
The heart-beat comes from a thread of its own; a stage that holds the interpreter lock for good silences it, and the
parent then ends the process. Covered: death of the parent, or of this process, by any means. Not covered: a child that
leaves the session, which the parent's kill_tree finds by its descent while both live.
"""

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from gradus.data.errors import GradusError, StageError, in_words
from gradus.models.judging.folders import remove_folders
from gradus.tasks.config.redaction import hide, hide_in_logs, hide_in_output
from gradus.tasks.host.imports import lean_imports
from gradus.tasks.host.isolation import die_with_parent
from gradus.tasks.host.logs import open_log
from gradus.tasks.runs.records import Report
from gradus.tasks.runtime.messages import Message
from gradus.tasks.stages.warm import Warm

HEARTBEAT_S = 2.0
_AGAIN_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36

Job = Mapping[str, Any]
"""The fields of gradus.tasks.runtime.attempt.Job."""

Executor = Callable[[Job, Warm, Callable[..., None]], Report]


class Channel:
    """Writes one JSON line at a time to the parent, from any thread."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message."""
        with self._lock:
            self._stream.write(json.dumps(message, default=str) + "\n")
            self._stream.flush()


def main() -> None:
    """Serve jobs until the parent closes the pipe."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--execute", default="gradus.tasks.runtime.attempt:execute")
    parser.add_argument("--preload", default="")
    options = parser.parse_args()
    guardian = _leave_guardian()
    jobs, channel = _claim_pipes()
    hide_in_logs()
    hide_in_output()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_heartbeat, args=(channel,), daemon=True).start()
    incoming = _reader(jobs)
    # transformers imports these, a fifth of its own import, for assisted decoding and for models of images.
    with lean_imports("pandas", "scipy", "sklearn"):
        for name in filter(None, options.preload.split(",")):
            importlib.import_module(name)
    module, _, function = options.execute.partition(":")
    execute: Executor = getattr(importlib.import_module(module), function)
    channel.send({"kind": "ready"})
    warm = Warm()
    while True:
        incoming.wait()
        job = incoming.take()
        if "log" in job:
            warm = Warm()
        _work(partial(_move, guardian) if "log" in job else execute, job, warm, channel)


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


def _work(execute: Executor, job: Job, warm: Warm, channel: Channel) -> None:
    def beat(frac: float, text: str = "") -> None:
        channel.send({"kind": "beat", "frac": frac, "text": text})

    channel.send({"kind": "taken"})
    try:
        channel.send({"kind": "done", "result": execute(job, warm, beat)})
    except Exception as error:  # noqa: BLE001 - whatever a stage raises must reach the parent
        traceback.print_exc()
        plain = in_words(error)
        channel.send(
            {
                "kind": "error",
                "type": type(error).__name__,
                "known": isinstance(error, GradusError),
                "message": hide(plain.message),
                "hint": plain.hint,
            }
        )


class _Inbox:
    """The next job, handed from the reading thread to the main one."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._job: Job = {}

    def put(self, job: Job) -> None:
        self._job = job
        self._ready.set()

    def wait(self) -> None:
        self._ready.wait()

    def take(self) -> Job:
        self._ready.clear()
        return self._job


def _reader(jobs: IO[str]) -> _Inbox:
    """Read jobs in a thread, so that the end of the pipe is noticed while a stage runs."""
    inbox = _Inbox()

    def read() -> None:
        for line in jobs:
            inbox.put(json.loads(line))
        _end()

    threading.Thread(target=read, daemon=True).start()
    return inbox


def _end() -> None:
    """End this process and every process of its session."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _claim_pipes() -> tuple[IO[str], Channel]:
    """Keep the pipes under other numbers and send what is printed to the log."""
    jobs = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, encoding="utf-8") as nothing:  # noqa: PTH123 - a device, not a path
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    return jobs, Channel(answers)


def _heartbeat(channel: Channel) -> None:
    quiet = threading.Event()
    while not quiet.wait(HEARTBEAT_S):
        channel.send({"kind": "alive"})


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
            os.close(descriptor)  # the pipes are the worker's alone: their end is how its death is noticed
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


def _die_with_parent() -> None:
    """Linux: be killed when the parent dies, and adopt orphans so that they are still found by descent."""
    if sys.platform == "linux":
        die_with_parent(os.getppid())
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


if __name__ == "__main__":
    main()
