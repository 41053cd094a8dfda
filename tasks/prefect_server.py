"""Prefect's API for the flows of one command: the server of this home that runs already, or one that is started.

    connection = connect(home)          # at once: who connects before the server listens waits in its socket's queue
    import flows.stages                 # seconds, while the server imports what it needs
    connection.wait()                   # it has proved that it is ours; only now is the secret sent
    connection.close()                  # it stays for the next command, and leaves by itself

The server is a process of its own session: it gets no Ctrl-C of the command and holds none of its pipes.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from data.errors import StageError
from tasks.found_servers import (
    IDLE,
    LEASE,
    Answer,
    Found,
    Lease,
    ask,
    fingerprint,
    folder_of,
    forget,
    read_state,
    sole_starter,
    write_state,
)
from tasks.logs import last_words, open_log
from tasks.prefect_database import is_migrated, note_migrated
from tasks.secret import secret
from tasks.settings import code_root, server_idle_s

LOOPBACK = "127.0.0.1"
START_LIMIT_S = 180.0
SERVE = ("uvicorn", "--factory", "tasks.prefect_app:create", "--log-level", "error", "--lifespan", "on")
_PROBE_S = 0.3
_AGAIN_S = 5.0
_LOG = "prefect-background.log"


class Connection:
    """A command's use of a server: its address, its secret, its lease."""

    def __init__(
        self,
        home: Path,
        found: Found,
        key: str,
        lease: Lease,
        *,
        proved: bool,
        migrates: bool = False,
        log_start: int = 0,
    ) -> None:
        self.address = found.address
        self.secret = key
        self._home = home
        self._found = found
        self._lease = lease
        self._migrates = migrates
        self._log_start = log_start
        self._answer = Answer.PROVED if proved else Answer.SILENT
        self._asking = threading.Thread(target=self._ask, daemon=True)
        if not proved:
            self._asking.start()

    def wait(self) -> None:
        """Wait until the server has proved that it belongs to this home; StageError if it does not."""
        if self._asking.ident is not None:
            self._asking.join()
        if self._answer is Answer.PROVED:
            if self._migrates:
                note_migrated(Path(self._found.prefect_home), self._found.fingerprint)
            return
        log = self._home / "logs" / _LOG
        words = last_words(log, self._log_start) or "no answer"
        raise StageError(f"the Prefect server did not start: {words[:300]}", hint=f"see {log}, then call it again")

    def close(self) -> None:
        """Let go of the server; it stays for the next command."""
        self._lease.close()

    def _ask(self) -> None:
        until = time.monotonic() + START_LIMIT_S
        while self._answer is Answer.SILENT and time.monotonic() < until:
            if not self._found.lives:
                self._answer = Answer.WRONG
                return
            self._answer = ask(self._found, self.secret, _AGAIN_S)


def connect(home: Path, *, schedules: bool = False) -> Connection:
    """Find the server of this home, or start one; with `schedules` one that starts scheduled runs."""
    key = secret(home)
    with sole_starter(home):
        found = read_state(home)
        if found is not None and _usable(found, home, schedules=schedules):
            connection = _use(home, found, key)
            if connection is not None:
                return connection
        return _start(home, key, schedules=schedules)


def lent_secret(home: Path, api_url: str) -> str:
    """Return the secret if an address that somebody named is that of this home's own server; empty otherwise."""
    found = read_state(home)
    if found is None or api_url.rstrip("/") != f"{found.address}/api" or not found.lives:
        return ""
    key = secret(home)
    return key if ask(found, key, _AGAIN_S) is Answer.PROVED else ""


def door(home: Path, address: str) -> dict[str, str]:
    """The environment of a Prefect server behind the door of tasks.door."""
    key = secret(home)
    port = address.rpartition(":")[2]
    return {
        "PREFECT_HOME": prefect_home(home),
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_API_AUTH_STRING": key,
        "PREFECT_SERVER_API_AUTH_STRING": key,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{LOOPBACK}:{port},http://localhost:{port}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT__SERVER_FINAL": "1",
    }


def prefect_home(home: Path) -> str:
    """The folder of Prefect's database: PREFECT_HOME, or `prefect` in this home; without symbolic links."""
    return os.path.realpath(os.environ.get("PREFECT_HOME") or home / "prefect")


def describe(home: Path, address: str, pid: int, lease: str, *, schedules: bool) -> Found:
    """What the state file says of a server that has just been started."""
    began = psutil.Process(pid).create_time()
    return Found(address, pid, began, lease, schedules, prefect_home(home), fingerprint())


def _usable(found: Found, home: Path, *, schedules: bool) -> bool:
    same = found.prefect_home == prefect_home(home) and found.fingerprint == fingerprint()
    return same and (found.schedules or not schedules) and found.lives


def _use(home: Path, found: Found, key: str) -> Connection | None:
    """A running server; None if it has just left or another program listens at its address."""
    try:
        lease = Lease(folder_of(home) / found.lease)
    except FileNotFoundError:
        return None
    answer = ask(found, key, _PROBE_S) if read_state(home) == found else Answer.WRONG
    if answer is Answer.WRONG:
        lease.close()
        return None
    return Connection(home, found, key, lease, proved=answer is Answer.PROVED)


def _start(home: Path, key: str, *, schedules: bool) -> Connection:
    """Start a server on a socket that exists already, so that nobody else can answer at its address."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(128)
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        path = folder_of(home) / f"{listener.getsockname()[1]}-{os.getpid()}.lease"
        lease = Lease(path, create=True)
        env = {**door(home, address), LEASE: str(path), IDLE: str(server_idle_s())}
        if not schedules:
            env |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
        migrates = not is_migrated(Path(prefect_home(home)), fingerprint())
        if not migrates:
            env["PREFECT_API_DATABASE_MIGRATE_ON_START"] = "false"
        process, log_start = _spawn(home, listener.fileno(), env)
    found = describe(home, address, process.pid, path.name, schedules=schedules)
    process.returncode = 0  # it outlives this handle; Python need not warn of that
    old = read_state(home)
    write_state(home, found)
    if old is not None and not old.lives:
        forget(home, old)
    return Connection(home, found, key, lease, proved=False, migrates=migrates, log_start=log_start)


def _spawn(home: Path, listener: int, env: dict[str, str]) -> tuple["subprocess.Popen[bytes]", int]:
    """The server, and where its words begin in the log."""
    log_path = home / "logs" / _LOG
    path = os.pathsep.join(filter(None, [str(code_root()), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-P", "-m", *SERVE, "--app-dir", str(code_root()), "--fd", str(listener)]
    with open_log(log_path) as log:
        log_start = log.tell()
        process = subprocess.Popen(
            command,
            pass_fds=(listener,),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder_of(home),
            env={**os.environ, **env, "PYTHONPATH": path, "NO_COLOR": "1"},
            start_new_session=True,
        )
    return process, log_start
