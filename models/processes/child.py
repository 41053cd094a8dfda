"""The parent's end of a child process, and the end of a process with everything that it started.

    child = Child([sys.executable, "-P", "-m", "module"], env=environment, output=log, errors=log)
    child.send({"do": "count"})
    while child.wait(5.0):
        print(child.receive())      # [{"count": 1}]
    child.end()

The pipe is the child's stdin, a socket of both directions; the child's end is gradus.models.processes.parent. Messages
are JSON objects, a line each, never pickles: a child may run code of a user's, which can write what it likes. They
repeat a random word that the child read first; others are dropped. Sending and receiving never block, so that a child
that does not read, or stops in the middle of a message, holds up nobody.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

STOP_S = 0.5
"""Seconds to wait for a process to stop, before its children are looked for all the same."""
GONE_S = 5.0
"""Seconds to wait for killed processes to end: a busy machine takes some, a broken disk for ever."""
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_AGAIN_S = 0.005
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 18


class Child:
    """One child process in a session of its own, and the pipe to it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int | IO[bytes],
        errors: int | IO[bytes],
        cwd: Path | None = None,
        max_bytes: float = float("inf"),
    ) -> None:
        """Start it; `max_bytes` is the length of a message from which on the child counts as silent for good."""
        self.closed = False
        """True once nothing more can be received."""
        self._nonce = secrets.token_hex(16)
        self._inbox, self._outbox = bytearray(), bytearray()
        self._max_bytes = max_bytes
        self._pipe, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=errors,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                )
        except BaseException:
            self._pipe.close()
            raise
        self._pipe.setblocking(False)
        self.send({"nonce": self._nonce})

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its session and process group."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Return whether the child still runs."""
        return self.process.poll() is None

    @property
    def has_unsent(self) -> bool:
        """Return whether something waits for the pipe to take more."""
        return bool(self._outbox)

    def fileno(self) -> int:
        """Return the descriptor of the pipe, for a selector."""
        return self._pipe.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message; it goes out as fast as the child reads."""
        # ASCII only: lone surrogates and control characters of hostile texts stay escaped.
        self._outbox += json.dumps(message, default=str).encode("ascii") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes without waiting; a dead child is noticed by `receive`."""
        try:
            while self._outbox:
                del self._outbox[: self._pipe.send(self._outbox[:_WRITE_BYTES])]
        except BlockingIOError:
            return
        except ConnectionError:
            self._outbox.clear()

    def wait(self, timeout_s: float) -> bool:
        """Wait until something can be received, and send meanwhile; return False if nothing can in time."""
        until = time.monotonic() + timeout_s
        while True:
            poller = select.poll()
            poller.register(self._pipe, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            events = poller.poll(1000 * max(0.0, until - time.monotonic()))
            if not events or events[0][1] & ~select.POLLOUT:
                return bool(events)
            self.flush()

    def receive(self) -> list[dict[str, Any]]:
        """Return the whole messages that have arrived, without forged and broken ones."""
        known = len(self._inbox)
        with contextlib.suppress(BlockingIOError):
            while len(self._inbox) <= self._max_bytes:
                try:
                    piece = self._pipe.recv(_READ_BYTES)
                except ConnectionError:
                    piece = b""
                if not piece:
                    self.closed = True
                    break
                self._inbox += piece
        whole, end = bytearray(), self._inbox.rfind(b"\n", known) + 1
        if end:
            whole, self._inbox = self._inbox[:end], self._inbox[end:]
        self.closed |= len(self._inbox) > self._max_bytes
        return [message for line in whole.split(b"\n") if (message := self._read(line)) is not None]

    def settle(self, limit_s: float) -> None:
        """Let a child that closed its pipe finish exiting, so that `end` returns its own code; it is not reaped."""
        give_up = time.monotonic() + limit_s
        with contextlib.suppress(ChildProcessError):  # another thread has asked whether it is alive
            while time.monotonic() < give_up:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                    return
                time.sleep(_AGAIN_S)

    def end(self) -> int:
        """Kill the child, its process group and every descendant; return its exit code. A second call does nothing."""
        if self._pipe.fileno() >= 0:
            # Before the wait the zombie still holds its id: no signal can meet another process.
            kill_tree(self.pid)
            self.process.wait()
            self._pipe.close()
        return self.process.wait()

    def _read(self, line: bytearray) -> dict[str, Any] | None:
        try:
            message = json.loads(line)
            genuine = secrets.compare_digest(message.pop("nonce"), self._nonce)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return message if genuine else None


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
