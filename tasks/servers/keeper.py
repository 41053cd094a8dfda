"""The keeper of a server: a process that holds its listening socket, starts it again if it dies, and ends it when idle.

    GRADUS_KEEPER='{...}' python -P -m gradus.tasks.servers.keeper      # gradus.tasks.servers.connection starts it

A command that uses the server is connected to the keeper's socket, a file of `<home>/servers`, and is handed a copy of
the listening socket. As long as one of them lives no other program can listen at the address: the secret of the home,
which commands send there, reaches this server alone, even after the keeper was killed. The connection is the command's
lease as well, which the kernel ends with its process. Only processes of this account are answered.
Only Python's own library is imported: a keeper takes 12 MB and starts at once.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

KEEPER = "GRADUS_KEEPER"
"""Environment variable of a keeper and its server: the arguments of a `Keeper` as JSON."""
PID = "GRADUS_KEEPER_PID"
"""The same of a server: the process that it is killed with."""
MAX_FAILURES = 3
"""Number of servers in a row that may die before they answer; after that none is started."""
_LOOK_S = 0.2
_STOP_S = 5.0
_QUESTION = b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


class Server(TypedDict):
    """A server that a home may have; also the answer to commands that find it."""

    home: str
    name: str
    app: str
    """Module and function that make its application."""
    folder: str
    database: str
    """Its version and its database, which a command must share with it."""
    pages: bool
    """True if it has pages and starts scheduled runs."""
    idle_s: float
    """Seconds without a command after which it is ended."""


class Keeper:
    """A keeper with its server and the commands that use it."""

    def __init__(
        self, server: Server, command: list[str], path: str, made_ns: int, control: int, listener: int, user: int
    ) -> None:
        """Start the server.

        `path` is the file of the keeper's socket, whose time `made_ns` tells it from another keeper's.
        Descriptors are inherited; `user` is the connection to the command that starts it.
        """
        self._facts, self._command = server, command
        self._path, self._made_ns = Path(path), made_ns
        self._control, self._listener = socket.socket(fileno=control), socket.socket(fileno=listener)
        self._users = {socket.socket(fileno=user)}
        self._failures = 0
        self._start()

    def keep(self) -> None:
        """Keep the server until it is idle, its home is gone, or it fails too often."""
        used, gone = time.monotonic(), set[socket.socket]()
        while self._is_wanted(used):
            for user in gone:
                user.close()
            asked = [self._control, *self._users] if self._up else [self._control, self._question, *self._users]
            ready, _, _ = select.select(asked, [], [], _LOOK_S)
            gone = {user for user in self._users if user in ready and not _received(user)}
            if self._users:
                used = time.monotonic()
            self._users -= gone
            if self._control in ready:
                self._admit()
            if self._server.poll() is not None:
                self._end()
                self._failures += not self._up
                if self._failures == MAX_FAILURES:
                    self._say(f"failed {self._log_start}")
                    break
                self._start()
            elif self._question in ready and _received(self._question):
                self._up, self._failures = True, 0
                self._say("up")
        # Commands that have left, and wait, hear of the server's end when this function returns.
        if self._is_known():
            self._path.unlink()
        self._control.close()
        self._listener.close()
        self._server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(_STOP_S)
        self._end()

    def _start(self) -> None:
        """Start the server, and ask it something: the question waits in the queue of the listening socket."""
        self._up = False
        self._log_start = os.fstat(2).st_size
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", *self._command, "--fd", str(self._listener.fileno())],
            env={**os.environ, PID: str(os.getpid())},
            pass_fds=[self._listener.fileno()],
            process_group=0,
        )
        self._question = socket.create_connection(self._listener.getsockname())
        self._question.sendall(_QUESTION)

    def _end(self) -> None:
        """Kill the server, if it still runs, and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        self._question.close()

    def _admit(self) -> None:
        """Answer a command that has connected, if it is of this account."""
        with contextlib.suppress(OSError):
            user, _ = self._control.accept()
            if is_ours(user):
                facts = json.dumps([self._facts, self._up])
                socket.send_fds(user, [facts.encode()], [self._listener.fileno()])
                self._users.add(user)

    def _say(self, line: str) -> None:
        for user in self._users:
            with contextlib.suppress(OSError):
                user.sendall(f"{line}\n".encode())

    def _is_wanted(self, used: float) -> bool:
        if not self._path.parent.is_dir():
            return False
        is_idle = time.monotonic() - used >= self._facts["idle_s"]
        return bool(self._users) or (not is_idle and self._is_known())

    def _is_known(self) -> bool:
        """Return whether commands find this keeper; False if another has taken its place."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_mtime_ns == self._made_ns
        return False


def is_ours(peer: socket.socket) -> bool:
    """Return whether a process of this account is at the other end; elsewhere than on Linux the file's mode says so."""
    if sys.platform != "linux":
        return True
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid == os.geteuid()


def _received(peer: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return bool(peer.recv(64))
    return False


if __name__ == "__main__":
    Keeper(**json.loads(os.environ[KEEPER])).keep()
