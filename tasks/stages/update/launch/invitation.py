"""Invitation of the other hosts of a run to an update: a file in the run's folder.

with invited(path, config.launch, run_logs()): ...       # on the first host
invitation(run_folder)                                   # the job's path on another one; None: none at present
"""

import contextlib
import json
from collections.abc import Generator
from pathlib import Path

from gradus.data.errors import UsageError
from gradus.data.files import replace_file
from gradus.tasks.config.learning import LaunchConfig

_FILE = "launch.json"


@contextlib.contextmanager
def invited(job: Path, launch: LaunchConfig, logs: Path | None) -> Generator[None]:
    """Name a job to other hosts for a while, if it needs any; `logs` is the folder of the run's logs."""
    if launch.hosts == 1:
        yield
        return
    if logs is None:
        raise UsageError("an update on several hosts needs a run that they can join", hint="start it with a command")
    path = logs.parent / _FILE
    replace_file(path, json.dumps({"job": str(job)}), durable=True)
    try:
        yield
    finally:
        withdraw(path.parent)


def withdraw(run_folder: Path) -> None:
    """Withdraw the invitation; the worker that made it may have been killed."""
    (run_folder / _FILE).unlink(missing_ok=True)


def invitation(run_folder: Path) -> Path | None:
    """Return the path of the job that hosts are to join now; None if there is none."""
    try:
        return Path(json.loads((run_folder / _FILE).read_bytes())["job"])
    except (FileNotFoundError, ValueError):
        return None
