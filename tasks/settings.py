"""Where Gradus keeps its things, and how long a stage may take: nothing here changes a result."""

import os
from dataclasses import dataclass
from pathlib import Path

from data.errors import UsageError


@dataclass(frozen=True)
class Home:
    """The folder that holds everything: `.gradus` below the working folder unless GRADUS_HOME says otherwise."""

    root: Path

    @classmethod
    def from_environment(cls) -> "Home":
        """The home that GRADUS_HOME names, or `.gradus` here."""
        return cls(Path(os.environ.get("GRADUS_HOME", ".gradus")).resolve())

    @property
    def lake(self) -> Path:
        """Artefacts."""
        return self.root / "lake"

    @property
    def runs(self) -> Path:
        """One folder a run: its journal, lock and logs."""
        return self.root / "runs"

    @property
    def prefect(self) -> Path:
        """Prefect's database and settings."""
        return self.root / "prefect"


def worker_threads(num_busy: int = 1) -> int:
    """Threads of torch in a worker: OMP_NUM_THREADS, or one for each physical core up to eight.

    Where `num_busy` workers compute at once each has its share, at least one.
    """
    configured = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(configured) if configured.isdigit() and int(configured) > 0 else min(8, os.cpu_count() or 1)
    return max(1, threads // num_busy)


def wall_limit_s() -> float:
    """Wall time that one attempt of a stage may take: GRADUS_STAGE_LIMIT_S, or a day."""
    return float(os.environ.get("GRADUS_STAGE_LIMIT_S", "86400"))


def server_idle_s() -> float:
    """How long Prefect's server stays for the next command: GRADUS_SERVER_IDLE_S, or five minutes; 0 is not at all."""
    return float(os.environ.get("GRADUS_SERVER_IDLE_S", "300"))


def reports_now() -> bool:
    """Whether a run is reported to MLflow while it goes on: unless GRADUS_REPORT is `later`."""
    chosen = os.environ.get("GRADUS_REPORT", "now")
    if chosen not in ("now", "later"):
        raise UsageError(f"GRADUS_REPORT is {chosen!r}", hint="set it to now or later, or not at all")
    return chosen == "now"


def run_logs() -> Path | None:
    """The folder of logs of the run that this worker process computes for (GRADUS_RUN_LOGS); None elsewhere."""
    given = os.environ.get("GRADUS_RUN_LOGS")
    return Path(given) if given else None


def may_wait() -> bool:
    """Whether a command waits for an artefact that another one computes: unless GRADUS_NO_WAIT is set."""
    return not os.environ.get("GRADUS_NO_WAIT")


def code_root() -> Path:
    """The folder that holds the four packages, which child processes must find from any working folder."""
    return Path(__file__).parents[1]
