"""Client of the reporter in the flow's process: start it, wait for it, read its progress.

MLflow is never imported here: that takes three seconds, and a tracker that is down must delay nothing.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from gradus.tasks.host.home_folder import FOR_OWNER
from gradus.tasks.host.processes import child_environment, open_log
from gradus.tasks.tracking.state import Status, status

__all__ = ["Sidecar", "artifacts_uri", "database", "parting_words", "start_sidecar", "status", "tracking_uri", "wait"]

MOMENT_S = 0.3
"""Limit of the one connection by which a command finds out whether a tracker listens."""
LOW_PRIORITY = 10
"""Niceness of the reporter: importing MLflow takes seconds of a core that the command can use."""
_PORTS = {"http": 80, "https": 443}

TRACKER_ENVIRONMENT = {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Log synchronously, so that a kill loses nothing, and fail fast if the server is down."""


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


@dataclass(frozen=True)
class Sidecar:
    """The process that reports a run to MLflow."""

    folder: Path
    process: subprocess.Popen[bytes]


def start_sidecar(folder: Path, login: Mapping[str, str] | None = None) -> Sidecar:
    """Start the reporter in a session of its own: neither Ctrl-C nor the death of this process loses an event.

    `login` are variables of MLflow's client that go before those of the environment. What the reporter prints goes to
    `logs/tracking.log` of the run.
    """
    log_path = folder / "logs" / "tracking.log"
    command = [sys.executable, "-P", "-m", "gradus.tasks.tracking.reporter", str(folder), "--owner", str(os.getpid())]
    with open_log(log_path) as log:
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
        os.setpriority(os.PRIO_PROCESS, process.pid, LOW_PRIORITY)
    return Sidecar(folder, process)


def wait(sidecar: Sidecar, timeout_s: float) -> Status:
    """Wait up to `timeout_s` for the reporter and return what is still unsent. The reporter keeps running."""
    try:
        sidecar.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        # The reporter sends the rest on its own; reaped here, it is not a zombie if it ends before this process.
        threading.Thread(target=sidecar.process.wait, daemon=True).start()
        return replace(status(sidecar.folder), telling=True)
    return status(sidecar.folder)


def parting_words(sidecar: Sidecar, home: Path) -> str:
    """Return the message at a command's end if the tracker does not answer, or refused something; else empty.

    The reporter continues without the command, so a tracker that is well is not waited for.
    """
    found = wait(sidecar, timeout_s=0)
    if found.untold and found.telling and not found.problem and not _listens(tracking_uri(home)):
        found = replace(found, problem="the tracker does not answer")
    return found.sentence


def _listens(uri: str) -> bool:
    """Return whether a tracker accepts connections; assumed for addresses of no server, or behind a proxy."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    proxied = getproxies().keys() & {parts.scheme, "all"} and not proxy_bypass(host)
    if parts.scheme not in ("http", "https") or proxied:
        return True
    try:
        with socket.create_connection((host, parts.port or _PORTS[parts.scheme]), timeout=MOMENT_S):
            return True
    except OSError:
        return False
