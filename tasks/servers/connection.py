"""A command's use of a server of its home: found or started, kept by a keeper, never another program's.

    connection = connect(server, environment, ports)     # at once: early requests wait in the listening socket's queue
    connection.wait()                                    # until the server is up
    connection.close()                                   # it stays for the next command, until its keeper ends it

A server that dies is started again by its keeper (gradus.tasks.servers.keeper). A keeper that dies is started again by
the commands that use it: each holds a copy of the listening socket, in whose queue requests wait meanwhile.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gradus.data.errors import StageError
from gradus.data.runlock import LOCK, sole
from gradus.tasks.config.settings import code_root
from gradus.tasks.host.home_folder import FOR_OWNER
from gradus.tasks.host.processes import child_environment, last_words, open_log
from gradus.tasks.servers.keeper import KEEPER, MAX_FAILURES, Server, is_ours

LOOPBACK = "127.0.0.1"
START_LIMIT_S = 180.0
SERVE = ("uvicorn", "--factory", "--log-level", "error", "--lifespan", "on", "--app-dir", str(code_root()))
_ANSWER_S = 30.0
"""Time in which a keeper that lives answers."""
_LOOK_S = 0.5
_CLOSED_IN_CHILDREN = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Environment = Callable[[Server, str], Mapping[str, str]]
"""Environment of a server at an address, a URL without a path."""


class Found(NamedTuple):
    """A keeper that lives: the connection to it, the listening socket, its server and whether that is up."""

    keeper: socket.socket
    listener: socket.socket
    server: Server
    is_up: bool = False

    @property
    def address(self) -> str:
        """URL of the server without a path."""
        return f"http://{LOOPBACK}:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """Close both sockets."""
        self.keeper.close()
        self.listener.close()


class Connection:
    """A command's use of a server, until `close` or the end of the process."""

    def __init__(self, found: Found, environment: Environment) -> None:
        self.address = found.address
        self.lost = False
        """True if the server died and none could be started in its place."""
        self._found = found
        self._environment = environment
        self._log_start = 0
        self._closed = False
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def wait(self) -> None:
        """Wait until the server is up; StageError with its last words if it does not start."""
        if not self._settled.wait(START_LIMIT_S) or self.lost:
            raise self._failure("did not start")

    def close(self, wait_s: float = 0.0) -> None:
        """Release the server; if nobody uses it any more, wait until it has ended."""
        with self._lock, contextlib.suppress(OSError):
            self._closed = True
            self._found.listener.close()
            self._found.keeper.shutdown(socket.SHUT_WR)
        self._watching.join(wait_s)

    def explain(self) -> StageError:
        """Return the error of a command that failed because the server is lost."""
        return self._failure("ended and did not start again")

    def _failure(self, what: str) -> StageError:
        log, name = _log(self._found.server), self._found.server["name"]
        words = last_words(log, self._log_start)[:300] or "no answer"
        return StageError(f"the {name} server {what}: {words}", hint=f"see {log}, then call it again")

    def _watch(self) -> None:
        """Follow the keeper, and start another if it is killed."""
        failures = 0
        while failures < MAX_FAILURES and not self._closed:
            if self._found.is_up:
                self._settled.set()
            with contextlib.suppress(OSError), self._found.keeper as keeper, keeper.makefile() as lines:
                for line in lines:
                    if line == "up\n":
                        failures = 0
                        self._settled.set()
                    else:
                        failures, self._log_start = MAX_FAILURES, int(line.split()[1])
            failures += 1
            if failures < MAX_FAILURES and not self._closed and not self._renew():
                break
        self._found.keeper.close()
        self.lost = not self._closed
        self._settled.set()
        while not self._closed:  # requests end instead of waiting, and nobody else gets the address
            with contextlib.suppress(OSError, ValueError):
                select.select([self._found.listener], [], [], _LOOK_S)
                self._found.listener.accept()[0].close()

    def _renew(self) -> bool:
        """Find or start another keeper on the same listening socket; False if none can be started."""
        home = Path(self._found.server["home"])
        if not folder_of(home).is_dir():
            return False
        with contextlib.suppress(OSError, StageError), sole(folder_of(home) / LOCK):
            listener = self._found.listener.dup()
            found = join(home, self._found.server["name"], self.address)
            if found is not None:
                listener.close()
            else:
                found = _start(self._found.server, self._environment, listener)
            with self._lock:
                self._found.listener.close()
                self._found = found
                if self._closed:
                    found.close()
            return True
        return False


def connect(server: Server, environment: Environment, ports: Iterable[int] = ()) -> Connection:
    """Use the server of a home if it is as good as this one; else start this at the first of these ports, or any."""
    home = Path(server["home"])
    with sole(folder_of(home) / LOCK):
        found = join(home, server["name"])
        if found is not None:
            theirs = found.server
            if theirs["database"] == server["database"] and (theirs["pages"] or not server["pages"]):
                return Connection(found, environment)
            found.close()
        return Connection(_start(server, environment, bound(ports)), environment)


def join(home: Path, name: str, address: str = "") -> Found | None:
    """Find the keeper of a home's server, at this address if one is named, and become a user of it."""
    keeper = socket.socket(socket.AF_UNIX)
    keeper.settimeout(_ANSWER_S)
    with contextlib.suppress(OSError, ValueError):
        with _short(_path(home, name)) as path:
            keeper.connect(path)
        if is_ours(keeper):
            facts, (descriptor,), *_ = socket.recv_fds(keeper, 16_384, 1, _CLOSED_IN_CHILDREN)
            keeper.settimeout(None)
            found = Found(keeper, socket.socket(fileno=descriptor), *json.loads(facts))
            if address in ("", found.address):
                return found
            found.close()
    keeper.close()
    return None


def folder_of(home: Path) -> Path:
    """Return the folder of the keepers' sockets, and of the lock under which they are looked for and started."""
    return home / "servers"


def bound(ports: Iterable[int]) -> socket.socket:
    """Return a socket that listens at the first of these ports of 127.0.0.1 that is free, or at any.

    Accepted connections inherit TCP_NODELAY from it. uvicorn takes a socket that it is handed for a Unix one and does
    not set it, and then the second packet of every answer waits 40 ms for the delayed acknowledgement of the first.
    """
    for port in (*ports, 0):
        with contextlib.suppress(OSError, OverflowError):
            listener = socket.create_server((LOOPBACK, port), backlog=128)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
    raise StageError("no port of 127.0.0.1 is free", hint="end some of the programs that listen there")


def _start(server: Server, environment: Environment, listener: socket.socket) -> Found:
    """Start a keeper on a listening socket; commands find it from now on."""
    path = _path(Path(server["home"]), server["name"])
    path.unlink(missing_ok=True)
    user, theirs = socket.socketpair()
    found = Found(user, listener, server)
    with socket.socket(socket.AF_UNIX) as control, theirs, open_log(_log(server)) as log:
        with _short(path) as address:
            control.bind(address)
        path.chmod(0o600)
        control.listen(128)
        given = {
            "server": server,
            "command": [*SERVE, server["app"]],
            "path": str(path),
            "made_ns": path.stat().st_mtime_ns,
            "control": control.fileno(),
            "listener": listener.fileno(),
            "user": theirs.fileno(),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gradus.tasks.servers.keeper"],
            pass_fds=(control.fileno(), listener.fileno(), theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=server["folder"],
            env=child_environment(environment(server, found.address), {"NO_COLOR": "1", KEEPER: json.dumps(given)}),
            umask=FOR_OWNER,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # it may end before this process, as no zombie
    return found


@contextlib.contextmanager
def _short(path: Path) -> Generator[str]:
    """Return an address of a Unix socket, which may have 108 bytes, for a file whose path may have more."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}" if sys.platform == "linux" else str(path)
    finally:
        os.close(folder)


def _path(home: Path, name: str) -> Path:
    """The file of a keeper's socket; a container that shares the home but not the network has another."""
    namespace = Path("/proc/self/ns/net")  # of Linux
    network = namespace.stat().st_ino if namespace.exists() else 0
    return folder_of(home) / f"{name.lower()}-{network}.sock"


def _log(server: Server) -> Path:
    return Path(server["home"], "logs", f"{server['name'].lower()}-server.log")
