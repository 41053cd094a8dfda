"""The Prefect and MLflow servers: on loopback, on free ports, ended with the process that started them.

    with start_servers(home, 4200, 5000) as servers:         # gradus ui
        print(servers.prefect_url, servers.mlflow_url)

Both are behind the door of gradus.tasks.servers.door; the commands of its home find and use Prefect's. Each server runs
below a guard (this module as a program) that ends it, and all it started, when the pipe from here is closed; a kill -9
closes it too. Left out: anything reachable from another machine.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from gradus.data.errors import StageError
from gradus.data.package import package_file
from gradus.models.processes.tree import kill_tree
from gradus.tasks.config.settings import code_root
from gradus.tasks.host.home_folder import FOR_OWNER
from gradus.tasks.host.isolation import child_environment
from gradus.tasks.host.logs import last_words, open_log
from gradus.tasks.servers.found_servers import (
    ADDRESS,
    Lease,
    Proof,
    ask_at,
    folder_of,
    forget,
    sole_starter,
    write_state,
)
from gradus.tasks.servers.prefect_server import (
    LOOPBACK,
    PAGES_PORT,
    SERVE,
    START_LIMIT_S,
    Connection,
    connect,
    describe,
    door,
    has_pages,
    prefect_home,
)
from gradus.tasks.servers.secret import secret
from gradus.tasks.tracking.client import database, tracking_uri

_SERVE_MLFLOW = ("uvicorn", "--factory", "gradus.tasks.servers.mlflow_app:create", "--log-level", "warning")
_POLL_S = 0.2
_ASK_S = 5.0
_STOP_S = 5.0


@dataclass(frozen=True)
class Server:
    """One server below its guard."""

    name: str
    address: str
    folder: str
    """Folder of its data; with its address and the home's secret the proof that it is ours."""
    home: Path
    log_path: Path
    guard: subprocess.Popen[bytes]
    log_start: int = 0
    """Offset in the log at which this server's output begins."""
    at_end: Callable[[], None] = field(default=lambda: None)

    def wait_until_healthy(self, limit_s: float) -> None:
        """Wait until it proves to be ours; raise StageError with its last output if it ends or takes too long."""
        key, deadline = secret(self.home), time.monotonic() + limit_s
        while ask_at(self.address, self.folder, key, _ASK_S) is not Proof.PROVED:
            if self.guard.poll() is not None or time.monotonic() > deadline:
                words = last_words(self.log_path, self.log_start)
                raise StageError(f"the {self.name} server did not start: {words[:300]}", hint=f"see {self.log_path}")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the server and all it started."""
        assert self.guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.guard.stdin.close()
        try:
            self.guard.wait(2 * _STOP_S)
        except subprocess.TimeoutExpired:
            kill_tree(self.guard.pid)
            self.guard.wait()
        self.at_end()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Servers:
    """Running servers and their addresses; a context manager that ends them."""

    prefect_url: str
    mlflow_url: str
    running: tuple[Server | Connection, ...]

    def close(self) -> None:
        """End the servers."""
        for server in self.running:
            server.close()

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_servers(home: Path, prefect_port: int = PAGES_PORT, mlflow_port: int = 5000) -> Servers:
    """Start both servers and wait until they answer; a port that is taken is replaced by the next free one.

    A Prefect server of this home that has pages already is used, and so is a server that MLFLOW_TRACKING_URI names.
    """
    uri = tracking_uri(home)
    remote = urlsplit(uri).scheme in ("http", "https")
    running: list[Server | Connection] = []
    try:
        found = connect(home, schedules=True) if has_pages(home) else None
        running.append(found or start_prefect(home, free_port(prefect_port)))
        if not remote:
            running.append(start_mlflow(home, free_port(mlflow_port)))
        for server in running:
            server.wait() if isinstance(server, Connection) else server.wait_until_healthy(START_LIMIT_S)
    except BaseException:
        for server in running:
            server.close()
        raise
    return Servers(running[0].address, uri if remote else running[1].address, tuple(running))


def free_port(preferred: int) -> int:
    """The preferred port of 127.0.0.1, or the next free one of the twenty above it, or any."""
    for port in (*range(preferred, min(preferred + 20, 65536)), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise StageError("no port of 127.0.0.1 is free", hint="end some of the programs that listen there")


def server_environment() -> dict[str, str]:
    """Return the settings of mlflow/server.env; models are never unpickled, whatever stands there."""
    path = package_file("mlflow", "server.env")
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {**{key.strip(): value.strip() for key, value in pairs}, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}


def start_prefect(home: Path, port: int) -> Server:
    """Start Prefect's whole server, pages and schedules included, for the commands of this home to find."""
    address = f"http://{LOOPBACK}:{port}"
    with sole_starter(home):
        env = {**door(home, address), "PREFECT_UI_API_URL": f"{address}/api"}
        command = [*SERVE, "--app-dir", str(code_root()), "--host", LOOPBACK, "--port", str(port)]
        server = _start("Prefect", command, env, address, prefect_home(home), home)
        found = describe(home, address, server.guard.pid, f"{server.guard.pid}.lease", schedules=True)
        Lease(folder_of(home) / found.lease, create=True).close()
        write_state(home, found)
    return replace(server, at_end=lambda: forget(home, found))


def start_mlflow(home: Path, port: int) -> Server:
    """Start MLflow's server with the database and the artifacts of this home."""
    database(home).parent.mkdir(parents=True, exist_ok=True)
    address = f"http://{LOOPBACK}:{port}"
    # The database's address is not an argument: it may have a password, and every account reads a process's arguments.
    env = {
        **server_environment(),
        "GRADUS_HOME": str(home.resolve()),
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"{LOOPBACK}:{port},localhost:{port}",
        ADDRESS: address,
    }
    command = [*_SERVE_MLFLOW, "--app-dir", str(code_root()), "--host", LOOPBACK, "--port", str(port)]
    # An address of the user's may be relative to the working folder.
    cwd = None if os.environ.get("MLFLOW_TRACKING_URI") else database(home).parent
    return _start("MLflow", command, env, address, str(home.resolve()), home, cwd)


def _start(
    name: str,
    module: Sequence[str],
    env: Mapping[str, str],
    url: str,
    folder: str,
    home: Path,
    cwd: Path | None = None,
) -> Server:
    log_path = home / "logs" / f"{name.lower()}-server.log"
    with open_log(log_path) as log:
        log_start = log.tell()
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "gradus.tasks.servers.processes", sys.executable, "-P", "-m", *module],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=child_environment(env, {"NO_COLOR": "1"}),
            cwd=cwd,
            umask=FOR_OWNER,
            start_new_session=True,
        )
    return Server(name, url, folder, home, log_path, guard, log_start)


def _guard(command: Sequence[str]) -> int:
    """Run a server until it ends or this process's stdin is closed; return the exit code."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end_with_parent() -> None:
        while os.read(0, 1024):  # not through sys.stdin, whose lock a thread would hold at the interpreter's end
            continue
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_S)
        kill_tree(server.pid)

    threading.Thread(target=end_with_parent, daemon=True).start()
    code = server.wait()
    kill_tree(server.pid)
    return code


if __name__ == "__main__":
    sys.exit(_guard(sys.argv[1:]))
