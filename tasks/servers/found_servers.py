"""The Prefect server of a home: discovery, leases, exit when idle.

`<home>/servers/state.json` names the one server of a home: address, process, abilities. Each user of it holds a
shared lock on its lease file, which the kernel releases even after kill -9. A server started by a command
exits once it is idle: no lease is held and no request has come for a while. If the state file does not name it any more
(`gradus ui` took its place) it exits as soon as its lease is free, and if the home is deleted, at once.
A server found in this way is sent nothing but a nonce until it has proved that it knows the home's secret.
"""

import contextlib
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from gradus.data.files import replace_file
from gradus.tasks.servers.secret import proof

IDENTITY = "/gradus/identity"
NONCE_DIGITS = 64
STATE = "state.json"
LEASE = "GRADUS_SERVER_LEASE"
"""Environment variable of a server that exits when it is idle: its lease file."""
IDLE = "GRADUS_SERVER_IDLE_S"
"""The same: idle seconds, without a lease or a request, after which it exits."""
ADDRESS = "GRADUS_SERVER_ADDRESS"
"""In the environment of an MLflow server: its URL without a path."""
_POLL_S = 0.5
_GRACE_S = 10.0
_LAST_WORDS_S = 10.0
_SAME_START_S = 5.0


@dataclass(frozen=True)
class Found:
    """A server as the state file names it."""

    address: str
    """Its URL without a path."""
    pid: int
    """Its process."""
    began: float
    """Start of that process (seconds since the epoch, as the kernel says)."""
    lease: str
    """Name of its lease file beside the state file."""
    schedules: bool
    """True if it starts scheduled runs."""
    prefect_home: str
    """Folder of its database."""
    fingerprint: str
    """Fingerprint that a command must share with it, see `fingerprint`."""

    @property
    def lives(self) -> bool:
        """Return whether its process is still that process, and of this account."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.began) < _SAME_START_S and process.uids().real == os.getuid()
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class Proof(Enum):
    """Answer of a server to the question of identity."""

    PROVED = "proved"
    WRONG = "wrong"
    SILENT = "silent"


def folder_of(home: Path) -> Path:
    """Return the folder of the state, the lock and the leases of a home's server."""
    return home / "servers"


def fingerprint() -> str:
    """Prefect's version and a digest of the database setting (it may hold a password): both must agree."""
    database = os.environ.get("PREFECT_API_DATABASE_CONNECTION_URL", "")
    return f"{version('prefect')} {hashlib.sha256(database.encode()).hexdigest()[:16] if database else ''}".strip()


def read_state(home: Path) -> Found | None:
    """Return the server that the state file names, alive or not; None if there is none that can be read."""
    try:
        return Found(**json.loads((folder_of(home) / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_state(home: Path, found: Found) -> None:
    """Replace the state file whole."""
    replace_file(folder_of(home) / STATE, json.dumps(asdict(found)))


def forget(home: Path, found: Found) -> None:
    """Remove the state of a server that has ended or is about to."""
    if read_state(home) == found:
        (folder_of(home) / STATE).unlink(missing_ok=True)
    (folder_of(home) / found.lease).unlink(missing_ok=True)


@contextlib.contextmanager
def sole_starter(home: Path) -> Generator[None]:
    """Hold the lock under which a home's server is looked for and started."""
    folder = folder_of(home)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "start.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Lease:
    """A shared lock on a server's lease file, held until `close` or the end of this process."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Release the lease; the server may exit."""
        os.close(self._descriptor)


def ask(found: Found, key: str, limit_s: float) -> Proof:
    """Ask the server of the state file to prove that it belongs to this home."""
    return ask_at(found.address, found.prefect_home, key, limit_s)


def ask_at(address: str, folder: str, key: str, limit_s: float) -> Proof:
    """Ask the server at an address to prove that it serves a folder; no secret is sent."""
    nonce = secrets.token_hex(NONCE_DIGITS // 2)
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit_s)
    try:
        connection.request("GET", f"{IDENTITY}?nonce={nonce}")
        answer = connection.getresponse()
        said = json.loads(answer.read(4096)).get("proof", "") if answer.status == http.HTTPStatus.OK else ""
    except TimeoutError:
        return Proof.SILENT
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return Proof.WRONG
    finally:
        connection.close()
    wanted = proof(key, nonce, address, folder)
    return (
        Proof.PROVED if isinstance(said, str) and hmac.compare_digest(said.encode(), wanted.encode()) else Proof.WRONG
    )


def leave_when_idle(lease: Path, idle_s: float, last_request_s: Callable[[], float]) -> None:
    """Wait, in a thread of the server, until it is idle; then end this process."""
    threading.Thread(target=_watch, args=(lease, idle_s, last_request_s), daemon=True).start()


def _watch(lease: Path, idle_s: float, last_request_s: Callable[[], float]) -> None:
    home = lease.parents[1]
    begun = used = time.monotonic()
    while True:
        time.sleep(_POLL_S)
        now = time.monotonic()
        if not lease.exists():
            break
        found = read_state(home)
        mine = found is not None and found.pid == os.getpid()
        if not mine and now - begun < _GRACE_S:
            continue  # the command that started this server has not written the state yet
        with _nobody_uses(lease) as free:
            if not free:
                used = now
            elif not mine or now - max(used, last_request_s()) >= idle_s:
                if found is not None and mine:
                    forget(home, found)
                lease.unlink(missing_ok=True)
                break
    _end()


@contextlib.contextmanager
def _nobody_uses(lease: Path) -> Generator[bool]:
    """Return whether the lease is free; if so no command can take it while this is held."""
    try:
        descriptor = os.open(lease, os.O_RDWR)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _end() -> None:
    """End this process: as SIGTERM does, or for certain if that takes too long."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_WORDS_S)
    os._exit(1)
