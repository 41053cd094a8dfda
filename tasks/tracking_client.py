"""Starting and awaiting the process that reports a run to MLflow, without importing MLflow here."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tasks.journal import EVENTS
from tasks.settings import code_root

CURSOR = "tracking.json"
OFF = "off"
"""Value of GRADUS_TRACKING that starts no reporter."""


def start_sidecar(folder: Path) -> "subprocess.Popen[bytes] | None":
    """Start the reporter of a run; none where GRADUS_TRACKING=off."""
    if os.environ.get("GRADUS_TRACKING", "") == OFF:
        return None
    path = os.pathsep.join(filter(None, [str(code_root()), os.environ.get("PYTHONPATH", "")]))
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "tracking.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tasks.tracking", str(folder), "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )


def wait(sidecar: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Wait until everything is reported; False where it took longer (the reporter then goes on by itself)."""
    try:
        return sidecar.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        return False


def untracked_bytes(folder: Path) -> int:
    """How much of the journal the tracker has not been told yet."""
    events, cursor = folder / EVENTS, folder / CURSOR
    told = json.loads(cursor.read_text())["offset"] if cursor.exists() else 0
    return max(0, events.stat().st_size - told) if events.exists() else 0


def process_alive(pid: int) -> bool:
    """Whether a process of that id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
