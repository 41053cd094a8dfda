"""Folders of Gradus and time limits of stages: nothing here changes a result."""

import math
import os
import resource
import shutil
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from gradus.components.addresses import is_address
from gradus.data.errors import GradusError, UsageError, in_words, shortened
from gradus.models.sandbox.groups import own_cpu_quota
from gradus.tasks.config.redaction import hide

LEAST_MEMORY_GB = 0.1
"""Below this DuckDB fails on two threads, though all that it counts can lie on the disk."""
ROOM_BYTES = 32_000_000
"""Free bytes for a home's databases and some logs of a run; a stage asks for more (gradus.data.lake.store)."""

_DATABASES = frozenset({"sqlite", "postgresql", "mysql", "mssql"})
_TRACKERS = frozenset({"file", "databricks", "databricks-uc", "uc"})


@dataclass(frozen=True)
class Home:
    """The folder that holds everything: `.gradus` below the working folder unless GRADUS_HOME says otherwise."""

    root: Path

    @classmethod
    def from_environment(cls) -> "Home":
        """The home that GRADUS_HOME names, or `.gradus` here; UsageError if there can be no such folder."""
        named = os.environ.get("GRADUS_HOME") or ".gradus"
        try:
            named.encode()
            return cls(Path(named).expanduser().resolve())  # files of services and containers expand no ~
        except UnicodeEncodeError:
            problem = "its name is not valid UTF-8"
        except OSError as error:  # the current folder was removed
            problem = in_words(error, "the current folder").message
        except RuntimeError:
            problem = "there is no such account" if named.startswith("~") else "it is a link that leads to itself"
        raise UsageError(f"GRADUS_HOME cannot be {named!r}: {problem}", hint="set GRADUS_HOME to another folder")

    @property
    def lake(self) -> Path:
        """Artifacts."""
        return self.root / "lake"

    @property
    def runs(self) -> Path:
        """One folder a run: its journal, lock and logs."""
        return self.root / "runs"

    @property
    def spill(self) -> Path | None:
        """The folder in which databases lay what exceeds their memory; None if it is not there, or to be read alone."""
        return self.root if os.access(self.root, os.W_OK) else None

    @property
    def prefect(self) -> Path:
        """Prefect's database and settings."""
        return self.root / "prefect"


def thread_settings(num_busy: int = 1) -> dict[str, str]:
    """Return the environment of torch's threads in a worker: OMP_NUM_THREADS, or one for each usable CPU up to eight.

    Where `num_busy` workers compute at once each has its share, at least one. Threads sleep while they wait for each
    other, unless OMP_WAIT_POLICY says otherwise: those that spin take the CPU from the one that they wait for, so that
    beside a busy process on two cores sampling takes more than twice as long (docs/benchmarks.md).
    """
    configured = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(configured) if configured.isdigit() and int(configured) > 0 else min(8, usable_cpus())
    policy = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return {"OMP_NUM_THREADS": str(max(1, threads // num_busy)), "OMP_WAIT_POLICY": policy}


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, by its affinity and the quotas of its control groups."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(found, own_cpu_quota()))


def wall_limit_s() -> float:
    """Wall time that one attempt of a stage may take: GRADUS_STAGE_LIMIT_S, or a day."""
    return _number("GRADUS_STAGE_LIMIT_S", 86400.0)


def server_idle_s() -> float:
    """Seconds without a command after which Prefect's server ends: GRADUS_SERVER_IDLE_S, or five minutes."""
    return _number("GRADUS_SERVER_IDLE_S", 300.0)


def traces_per_round() -> int:
    """Traces that the reporter keeps of a round: GRADUS_TRACES_PER_ROUND, or two."""
    return int(_number("GRADUS_TRACES_PER_ROUND", 2.0))


def tracking_patience_s() -> float:
    """Seconds that the reporter retries a tracker that does not answer: GRADUS_TRACKING_PATIENCE_S, or ten."""
    return _number("GRADUS_TRACKING_PATIENCE_S", 10.0)


def memory_bytes() -> int | None:
    """Memory that DuckDB may take: GRADUS_MEMORY_GB; None for its own limit, 80 % of the machine's."""
    limit_gb = _number("GRADUS_MEMORY_GB", math.inf)
    if limit_gb < LEAST_MEMORY_GB:
        raise UsageError(f"GRADUS_MEMORY_GB is {limit_gb:g}, less than {LEAST_MEMORY_GB:g}", hint="raise it")
    return None if math.isinf(limit_gb) else round(limit_gb * 1e9)


def prices() -> tuple[float, float]:
    """Cost of an hour of a CPU and of a GPU, in the user's money: GRADUS_CPU_PRICE and GRADUS_GPU_PRICE, or 0."""
    return _number("GRADUS_CPU_PRICE", 0.0), _number("GRADUS_GPU_PRICE", 0.0)


def check_environment() -> None:
    """Raise UsageError if a GRADUS_* variable is invalid, or another holds an invalid server address."""
    numbers = (wall_limit_s, server_idle_s, traces_per_round, tracking_patience_s, memory_bytes, prices)
    for read in (*numbers, reports_now, gpu_turns):
        read()
    prefect, tracker = (os.environ.get(name, "") for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"))
    if prefect and not is_address(prefect):
        raise _refused("PREFECT_API_URL", prefect, "http://127.0.0.1:4200/api")
    if tracker and not _is_tracker(tracker):
        raise _refused("MLFLOW_TRACKING_URI", tracker, "http://127.0.0.1:5000")


def _is_tracker(text: str) -> bool:
    """Return whether MLflow can keep runs there: a server, a database, a folder, or a scheme of an installed plugin."""
    scheme, separator, _ = text.partition(":")
    if scheme in ("http", "https"):
        return is_address(text)
    if not separator:
        return scheme in _TRACKERS or os.sep in text or Path(text).is_dir()
    known = scheme.partition("+")[0] in _DATABASES | _TRACKERS
    return known or scheme in entry_points(group="mlflow.tracking_store").names


def _refused(name: str, value: str, example: str) -> UsageError:
    return UsageError(
        f"{name} is {shortened(hide(value))!r}, not an address", hint=f"write it as {example}, or unset it"
    )


def check_room(home: Home) -> None:
    """Raise GradusError if there is no room for the databases of a home: a server would fail without a message."""
    free_bytes = shutil.disk_usage(home.root).free
    if free_bytes < ROOM_BYTES:
        raise GradusError(
            f"only {free_bytes / 1e6:.1f} MB are free where {home.root} lies",
            hint=f"free at least {ROOM_BYTES / 1e6:.0f} MB, or set GRADUS_HOME to a folder on another disk",
        )
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= file_bytes < ROOM_BYTES:
        raise GradusError(
            f"a process may write files of {file_bytes / 1e6:.1f} MB at most here",
            hint="raise the limit (`ulimit -f unlimited`)",
        )


def _number(name: str, default: float) -> float:
    """The number that a variable holds; the default if it is not set or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} is {shortened(text)!r}, not a number from 0 on", hint="correct it, or unset it")
    return value


def reports_now() -> bool:
    """Return whether a run is reported to MLflow while it runs: unless GRADUS_REPORT is `later`."""
    return _word("GRADUS_REPORT", "now", "later") == "now"


def gpu_turns() -> str:
    """Return GRADUS_GPU_TURNS: runs take turns on this machine's GPUs if it is `on`, or `auto` and one is seen."""
    return _word("GRADUS_GPU_TURNS", "auto", "on", "off")


def _word(name: str, *known: str) -> str:
    """The word that a variable holds, of those known; the first if it is not set."""
    chosen = os.environ.get(name, known[0])
    if chosen not in known:
        listed = f"{', '.join(known[:-1])} or {known[-1]}"
        raise UsageError(f"{name} is {shortened(chosen)!r}", hint=f"set it to {listed}, or not at all")
    return chosen


def run_logs() -> Path | None:
    """The folder of logs of the run that this worker process computes for (GRADUS_RUN_LOGS); None elsewhere."""
    given = os.environ.get("GRADUS_RUN_LOGS")
    return Path(given) if given else None


def may_wait() -> bool:
    """Return whether a command waits for an artifact that another one computes: unless GRADUS_NO_WAIT is set."""
    return not os.environ.get("GRADUS_NO_WAIT")


def code_root() -> Path:
    """Return the folder that holds the package `gradus`, which child processes must find from any working folder."""
    return Path(__file__).parents[3]
