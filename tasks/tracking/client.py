"""The reporter as other processes see it: start it, wait for it, and its progress.

`<run folder>/tracking.json` holds one number, the bytes of the journal that were sent, and what a user should know of
it. If it is lost or torn, reporting begins anew, and repeats nothing: sending twice changes nothing in MLflow.
MLflow is never imported here: that takes three seconds, and a tracker that is down must delay nothing.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from gradus.data.errors import CorruptArtifactError
from gradus.data.files import replace_file
from gradus.tasks.host.home_folder import FOR_OWNER
from gradus.tasks.host.processes import child_environment, open_log
from gradus.tasks.runs.journal import event_lines

STATE = "tracking.json"

MOMENT_S = 0.3
"""Limit of the one connection by which a command finds out whether a tracker listens."""
TRACKER_ENVIRONMENT = {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Log synchronously, so that a kill loses nothing, and fail fast if the server is down."""


class UnreachableError(Exception):
    """The tracker does not answer, or answers that it cannot now."""


class RefusedError(Exception):
    """The tracker answers that it will never take this event."""


@dataclass
class State:
    """Progress of the reporter."""

    offset: int = 0
    """Bytes of the journal that were sent."""
    problem: str = ""
    """Reason that the tracker does not answer."""
    refused: list[str] = field(default_factory=list)
    """Events that MLflow would not take, with its reasons."""

    def save(self, folder: Path) -> None:
        """Replace the file whole."""
        replace_file(folder / STATE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "State":
        """The saved state; a fresh one if there is none or it cannot be read."""
        try:
            body = json.loads((folder / STATE).read_text(encoding="utf-8"))
            return cls(int(body["offset"]), str(body["problem"]), list(map(str, body["refused"])))
        except (OSError, ValueError, TypeError, KeyError):
            return cls()


@dataclass(frozen=True)
class Status:
    """Number of events of a run that the tracker does not have yet."""

    run: str
    untold: int
    refused: int = 0
    problem: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """Return what a user should know, with the command that helps; empty if all is reported."""
        if self.untold:
            why = f" ({self.problem})" if self.problem else ""
            telling = f"`gradus sync {shlex.quote(self.run)}`"
            return f"MLflow has not been told {self.untold} events{why}; tell it with {telling}"
        return f"MLflow refused {self.refused} events of {self.run}: {self.reason}" if self.refused else ""


def status(folder: Path) -> Status:
    """Return the number of events of a run that the tracker does not have yet."""
    state = State.load(folder)
    problem, untold = state.problem, 0
    try:
        untold = sum(1 for _ in event_lines(folder, state.offset))
    except CorruptArtifactError as error:  # said here, raised where the journal is needed: the run itself is well
        problem, untold = str(error), 1
    return Status(folder.name, untold, len(state.refused), problem, state.refused[-1] if state.refused else "")


def tracker_environment() -> dict[str, str]:
    """Return environment variables for MLflow's client: SSL_CERT_FILE too, which it does not read by itself."""
    authority = os.environ.get("SSL_CERT_FILE")
    named = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "MLFLOW_TRACKING_INSECURE_TLS")
    if not authority or any(os.environ.get(name) for name in named):
        return TRACKER_ENVIRONMENT
    return {**TRACKER_ENVIRONMENT, "MLFLOW_TRACKING_SERVER_CERT_PATH": authority}


def database(home: Path) -> Path:
    """The embedded tracking database."""
    return home.resolve() / "mlflow" / "mlflow.db"


def artifacts_uri(home: Path) -> str:
    """Return the place of reports and samples with the embedded database."""
    return (home.resolve() / "mlflow" / "artifacts").as_uri()


def tracking_uri(home: Path) -> str:
    """Return where runs are reported: MLFLOW_TRACKING_URI, or the embedded database by its absolute address."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database(home)}"


def start_sidecar(folder: Path, login: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the reporter in a session of its own: neither Ctrl-C nor the death of this process loses an event.

    `login` are variables of MLflow's client that go before those of the environment.
    """
    command = [sys.executable, "-P", "-m", "gradus.tasks.tracking.reporter", str(folder), "--owner", str(os.getpid())]
    with open_log(folder / "logs" / "tracking.log") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=child_environment(tracker_environment(), os.environ, login or {}),
            umask=FOR_OWNER,
            start_new_session=True,
        )
    with contextlib.suppress(OSError):  # it has ended, or may not
        # Importing MLflow takes seconds of a core that the command can use.
        os.setpriority(os.PRIO_PROCESS, process.pid, 10)
    return process


def parting_words(sidecar: subprocess.Popen[bytes], folder: Path, home: Path) -> str:
    """Return the message at a command's end if the tracker does not answer, or refused something; else empty.

    The reporter continues without the command, so a tracker that is well is not waited for.
    """
    ended = sidecar.poll() is not None
    if not ended:  # reaped here, it is not a zombie if it ends before this process
        threading.Thread(target=sidecar.wait, daemon=True).start()
    found = status(folder)
    if ended or found.problem or not found.untold:
        return found.sentence
    return "" if _listens(tracking_uri(home)) else replace(found, problem="the tracker does not answer").sentence


def _listens(uri: str) -> bool:
    """Return whether a tracker accepts connections; assumed for addresses of no server, or behind a proxy."""
    parts, ports = urlsplit(uri), {"http": 80, "https": 443}
    host = parts.hostname or ""
    proxied = getproxies().keys() & {parts.scheme, "all"} and not proxy_bypass(host)
    if parts.scheme not in ports or proxied:
        return True
    try:
        with socket.create_connection((host, parts.port or ports[parts.scheme]), timeout=MOMENT_S):
            return True
    except OSError:
        return False
