"""Prefect's API for the flows of one command: the server of this home that runs already, or one that is started.

    connection = connect(home)          # at once: early connections wait in the socket's queue
    import gradus.flows.stages                 # seconds, while the server imports what it needs
    connection.wait()                   # it has proved that it is ours; only now is the secret sent
    connection.close()                  # it stays for the next command, and leaves by itself

The server is a process of its own session: it gets no Ctrl-C of the command and holds none of its pipes.
If it dies while a command uses it, the command starts another at the same address, with the same database. The command
that started the first keeps its socket open, so that requests wait in its queue meanwhile; others bind the port anew.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from gradus.data.errors import StageError
from gradus.tasks.config.settings import code_root, server_idle_s
from gradus.tasks.host.home_folder import FOR_OWNER
from gradus.tasks.host.isolation import child_environment
from gradus.tasks.host.logs import last_words, open_log
from gradus.tasks.host.setting_files import prefect_files
from gradus.tasks.servers.found_servers import (
    IDLE,
    LEASE,
    Found,
    Lease,
    Proof,
    ask,
    fingerprint,
    folder_of,
    forget,
    read_state,
    sole_starter,
    write_state,
)
from gradus.tasks.servers.prefect_database import is_migrated, note_migrated
from gradus.tasks.servers.secret import secret

LOOPBACK = "127.0.0.1"
PAGES_PORT = 4200
"""The preferred port of a server with pages."""
START_LIMIT_S = 180.0
SERVE = ("uvicorn", "--factory", "gradus.tasks.servers.prefect_app:create", "--log-level", "error", "--lifespan", "on")
_PROBE_S = 0.3
_AGAIN_S = 5.0
_LOOK_S = 0.2
_MAX_RESTARTS = 3
"""Number of servers in a row that may die before they answer; after that none is started."""
_LOG = "prefect-background.log"


class Connection:
    """A command's use of a server: its address, its secret, its lease.

    `listener` is the socket that the command started the server with.
    """

    def __init__(
        self,
        home: Path,
        found: Found,
        key: str,
        lease: Lease,
        *,
        proved: bool,
        listener: int | None = None,
        log_start: int = 0,
    ) -> None:
        self.address = found.address
        self.secret = key
        self.lost = False
        """True if the server died and none could be started in its place."""
        self._home = home
        self._found = found
        self._lease = lease
        self._listener = listener
        self._log_start = log_start
        self._closed = threading.Event()
        self._answer = Proof.PROVED if proved else Proof.SILENT
        self._asking = threading.Thread(target=self._ask, daemon=True)
        if not proved:
            self._asking.start()

    def wait(self) -> None:
        """Wait until the server has proved that it belongs to this home; StageError if it does not.

        If it dies, now or later, another is started at its address.
        """
        if self._asking.ident is not None:
            self._asking.join()
        failures, until = 1, time.monotonic() + START_LIMIT_S
        while self._answer is not Proof.PROVED and failures < _MAX_RESTARTS and time.monotonic() < until:
            time.sleep(_LOOK_S)  # a killed process still lives for a moment when its socket is closed
            if self._found.lives:
                break
            self._answer = self._renew()
            failures += self._answer is Proof.WRONG
        if self._answer is not Proof.PROVED:
            self._let_go()
            raise StageError(f"the Prefect server did not start: {self._last_words()}", hint=self._see_log())
        database = Path(self._found.prefect_home), self._found.fingerprint
        if not is_migrated(*database):
            note_migrated(*database)
        threading.Thread(target=self._keep, daemon=True).start()

    def close(self) -> None:
        """Release the server; it stays for the next command."""
        self._closed.set()
        self._lease.close()
        self._let_go()

    def explain(self) -> StageError:
        """Return the error of a command that failed because the server is lost."""
        return StageError(
            f"the Prefect server ended and did not start again: {self._last_words()}", hint=self._see_log()
        )

    def _ask(self) -> None:
        self._answer = self._asked(self._found)

    def _asked(self, found: Found) -> Proof:
        answer, until = Proof.SILENT, time.monotonic() + START_LIMIT_S
        while answer is Proof.SILENT and time.monotonic() < until:
            if not found.lives:
                return Proof.WRONG
            answer = ask(found, self.secret, _AGAIN_S)
        return answer

    def _keep(self) -> None:
        """Keep a server at this address as long as the command and its home exist."""
        failures = 0
        while not self._closed.wait(_LOOK_S):
            if self._found.lives:
                continue
            if not folder_of(self._home).is_dir():
                return
            answer = self._renew()
            failures = {Proof.PROVED: 0, Proof.SILENT: failures, Proof.WRONG: failures + 1}[answer]
            if failures >= _MAX_RESTARTS:
                self.lost = True
                self._let_go()  # requests are refused from now on instead of waiting
                return

    def _renew(self) -> Proof:
        """Find or start another server at the address of one that died, and ask it."""
        renewed = self._renewed()
        if renewed is None:  # whoever listens there now, perhaps another command's that is about to start
            return ask(self._found, self.secret, _AGAIN_S)
        self._found = renewed
        return self._asked(renewed)

    def _renewed(self) -> Found | None:
        """Another server at the same address, known or started; None if another program has the port."""
        with sole_starter(self._home):
            state = read_state(self._home)
            lives = state is not None and state.lives
            if state is not None and lives and state.address == self.address:
                self._hold(state.lease)
                return state
            if self._listener is None:
                self._listener = _bound(self.address)
            if self._listener is None or self._closed.is_set():
                return None
            self._hold(self._found.lease)
            schedules = self._found.schedules
            found, self._log_start = _launch(
                self._home, self.address, self._listener, self._found.lease, schedules=schedules
            )
            if not lives:
                write_state(self._home, found)
            return found

    def _hold(self, lease: str) -> None:
        held = self._lease
        self._lease = Lease(folder_of(self._home) / lease, create=True)
        held.close()

    def _let_go(self) -> None:
        if self._listener is not None:
            os.close(self._listener)
            self._listener = None

    def _last_words(self) -> str:
        return last_words(self._home / "logs" / _LOG, self._log_start)[:300] or "no answer"

    def _see_log(self) -> str:
        return f"see {self._home / 'logs' / _LOG}, then call it again"


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


def has_pages(home: Path) -> bool:
    """Return whether a server of this home runs that has pages and starts scheduled runs."""
    found = read_state(home)
    return found is not None and _usable(found, home, schedules=True)


def lent_secret(home: Path, api_url: str) -> str:
    """Return the secret if an address that the user named is this home's own server; empty otherwise."""
    found = read_state(home)
    if found is None or api_url.rstrip("/") != f"{found.address}/api" or not found.lives:
        return ""
    key = secret(home)
    return key if ask(found, key, _AGAIN_S) is Proof.PROVED else ""


def door(home: Path, address: str) -> dict[str, str]:
    """The environment of a Prefect server behind the door of gradus.tasks.servers.door."""
    key = secret(home)
    port = address.rpartition(":")[2]
    return {
        **prefect_files(),
        "PREFECT_HOME": prefect_home(home),
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_API_AUTH_STRING": key,
        "PREFECT_SERVER_API_AUTH_STRING": key,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{LOOPBACK}:{port},http://localhost:{port}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Leases outlive a restart: one that is forgotten is neither renewed nor ended, and its slot stays taken.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT__SERVER_FINAL": "1",
    }


def prefect_home(home: Path) -> str:
    """The folder of Prefect's database: PREFECT_HOME, or `prefect` in this home; without symbolic links."""
    return os.path.realpath(os.environ.get("PREFECT_HOME") or home / "prefect")


def describe(home: Path, address: str, pid: int, lease: str, *, schedules: bool) -> Found:
    """Return the contents of the state file of a server that has just been started."""
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
    answer = ask(found, key, _PROBE_S) if read_state(home) == found else Proof.WRONG
    if answer is Proof.WRONG:
        lease.close()
        return None
    return Connection(home, found, key, lease, proved=answer is Proof.PROVED)


def _start(home: Path, key: str, *, schedules: bool) -> Connection:
    """Start a server on an existing socket, so that no other process can answer at its address."""
    listener = (_bound(f"http://{LOOPBACK}:{PAGES_PORT}") if schedules else None) or _bound(f"http://{LOOPBACK}:0")
    assert listener is not None
    with socket.socket(fileno=os.dup(listener)) as bound:
        port = bound.getsockname()[1]
    address, name = f"http://{LOOPBACK}:{port}", f"{port}-{os.getpid()}.lease"
    lease = Lease(folder_of(home) / name, create=True)
    found, log_start = _launch(home, address, listener, name, schedules=schedules)
    old = read_state(home)
    write_state(home, found)
    if old is not None and not old.lives:
        forget(home, old)
    return Connection(home, found, key, lease, proved=False, listener=listener, log_start=log_start)


def _bound(address: str) -> int | None:
    """Return a socket that listens at an address; None if another one does.

    Accepted connections inherit TCP_NODELAY from it. uvicorn takes a socket that it is handed for a Unix one and does
    not set it, and then the second packet of every answer waits 40 ms for the delayed acknowledgement of the first.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((LOOPBACK, int(address.rpartition(":")[2])))
        except OSError:
            return None
        listener.listen(128)
        return listener.detach()


def _launch(home: Path, address: str, listener: int, lease: str, *, schedules: bool) -> tuple[Found, int]:
    """Start a server process on a socket; also where its words begin in the log."""
    env = {**door(home, address), LEASE: str(folder_of(home) / lease), IDLE: str(server_idle_s())}
    if not schedules:
        env |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
    if is_migrated(Path(prefect_home(home)), fingerprint()):
        env["PREFECT_API_DATABASE_MIGRATE_ON_START"] = "false"
    process, log_start = _spawn(home, listener, env)
    # Described before anybody waits for it: one that has ended at once is still known to the kernel.
    found = describe(home, address, process.pid, lease, schedules=schedules)
    threading.Thread(target=process.wait, daemon=True).start()  # it may leave before this process ends, as no zombie
    return found, log_start


def _spawn(home: Path, listener: int, env: dict[str, str]) -> tuple["subprocess.Popen[bytes]", int]:
    """The server, and where its words begin in the log."""
    command = [sys.executable, "-P", "-m", *SERVE, "--app-dir", str(code_root()), "--fd", str(listener)]
    with open_log(home / "logs" / _LOG) as log:
        log_start = log.tell()
        process = subprocess.Popen(
            command,
            pass_fds=(listener,),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder_of(home),
            env=child_environment(env, {"NO_COLOR": "1"}),
            umask=FOR_OWNER,
            start_new_session=True,
        )
    return process, log_start
