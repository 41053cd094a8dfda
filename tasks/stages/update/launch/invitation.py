"""Invitation of the other hosts of a run to an update: a file in the run's folder.

with invited(job, folder, config.launch, run_logs()): ...       # on the first host
invitation(run_folder)          # on another one: {"job": ..., "folder": ...}; None: none at present
"""

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from gradus.data.errors import UsageError
from gradus.data.files import replace_file
from gradus.tasks.config.learning import LaunchConfig

_FILE = "launch.json"


@contextlib.contextmanager
def invited(job: dict[str, Any], folder: Path, launch: LaunchConfig, logs: Path | None) -> Generator[None]:
    """Name a job to other hosts for a while, if it needs any; `logs` is the folder of the run's logs."""
    if launch.hosts == 1:
        yield
        return
    if logs is None:
        raise UsageError("an update on several hosts needs a run that they can join", hint="start it with a command")
    path = logs.parent / _FILE
    replace_file(path, json.dumps({"job": job, "folder": str(folder)}), durable=True)
    try:
        yield
    finally:
        withdraw(path.parent)


def withdraw(run_folder: Path) -> None:
    """Withdraw the invitation; the worker that made it may have been killed."""
    (run_folder / _FILE).unlink(missing_ok=True)


def invitation(run_folder: Path) -> dict[str, Any] | None:
    """Return the job that hosts are to join now, and the folder that they share; None if there is none."""
    try:
        return json.loads((run_folder / _FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
