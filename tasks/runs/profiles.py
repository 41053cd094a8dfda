"""Profiler traces of stage attempts: where a worker leaves one, and where the run keeps it.

A trace is of an attempt, not of its artifact: the artifact's manifest does not name it.
"""

import shutil
from pathlib import Path

_NAME = "profile.json.gz"


def trace_of(artifact: Path) -> Path:
    """Where a worker leaves the trace of the attempt that makes an artifact; readers pass by what begins with a dot."""
    return artifact / f".{_NAME}"


def kept_trace(run: Path, attempt: str) -> Path:
    """Where a run keeps the trace of an attempt: `profiles/ATTEMPT.profile.json.gz` of its folder."""
    return run / "profiles" / f"{attempt}.{_NAME}"


def keep_trace(artifact: Path, run: Path, attempt: str) -> None:
    """Move the trace of an attempt, if there is one, to its run."""
    found, kept = trace_of(artifact), kept_trace(run, attempt)
    if found.is_file():
        kept.parent.mkdir(exist_ok=True)
        shutil.move(found, kept)
