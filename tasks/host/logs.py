"""Log files that several processes append to, and that are set aside when they grow.

with open_log(home / "logs" / "mlflow-server.log") as log:
    subprocess.Popen(command, stdout=log, stderr=log)
"""

import os
import re
from functools import partial
from pathlib import Path
from typing import IO

from gradus.tasks.config.settings import run_logs

MAX_BYTES = 4_000_000
"""A log that is longer when it is opened becomes NAME.1; the one that had this name is deleted."""
_TAIL_BYTES = 4096


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending; processes that have the old file open continue to write to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return open(path, "ab", opener=partial(os.open, mode=0o600))


def last_words(path: Path, since: int = 0) -> str:
    """Return the last line of a log after this byte; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def reward_log(name: str) -> Path | None:
    """Return the file for the output of a reward, in the logs of the run of this process; None outside a run."""
    logs = run_logs()
    return logs / log_name(name) if logs else None


def log_name(reward: str) -> str:
    """The name of the log of a reward.

    >>> log_name("math"), log_name("/home/me/mine.py:by_length")
    ('reward-math.log', 'reward-mine-by_length.log')
    """
    path, _, function = reward.rpartition(":")
    short = f"{Path(path).stem}-{function}" if path else reward
    return f"reward-{re.sub(r'[^A-Za-z0-9_.-]', '_', short)}.log"


def printed(name: str) -> str:
    """The end of a hint that names the log of a reward; empty if it printed nothing."""
    log = reward_log(name)
    return f"; what it printed is in {log}" if log and log.exists() and log.stat().st_size else ""
