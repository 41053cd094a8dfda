"""Opening a run: its folder, its lock, its journal, its workers and the process that reports to MLflow."""

import contextlib
import json
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from data.errors import UsageError
from data.store import Store
from flows.progress import StageView
from tasks.access import require_mlflow
from tasks.dangling import close_dangling
from tasks.journal import Journal
from tasks.runlock import RunLock
from tasks.settings import Home, worker_threads
from tasks.stage import Session, git_sha
from tasks.supervise import WorkerPool
from tasks.tracking_client import start_sidecar, tracking_uri, wait


@dataclass(frozen=True)
class RunSpec:
    """What identifies a run and may not change while it keeps its name."""

    name: str
    verb: str
    seed: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    forced: frozenset[tuple[str, int, str]] = frozenset()


@contextlib.contextmanager
def open_session(spec: RunSpec, *, apart: bool = False, track: bool = True) -> Generator[Session]:
    """A session on a run: the lock held, workers supervised, everything told to the journal, all closed at the end.

    `apart` lets sampling and learning go on at once, each in a worker with half of the threads.
    """
    home = Home.from_environment()
    if track:
        require_mlflow(tracking_uri(home.root))
    folder = home.runs / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    close_dangling(home.runs, home.prefect)
    with RunLock(folder):
        guard(folder, spec)
        journal = Journal(folder)
        journal.run_started(_facts(spec))
        _label_flow_run(spec)
        sidecar = start_sidecar(folder) if track else None
        status = "killed"
        try:
            pool = WorkerPool(folder / "logs", env={"OMP_NUM_THREADS": str(worker_threads(1 + apart))})
            with pool, StageView() as view:
                yield Session(
                    Store(home.lake),
                    journal,
                    pool,
                    spec.seed,
                    spec.forced,
                    apart,
                    on_progress=view.beat,
                    on_end=view.outcome,
                )
            status = "finished"
        except Exception:
            status = "failed"
            raise
        finally:
            journal.run_finished(status=status)
            if sidecar is not None:
                untold = wait(sidecar, timeout_s=15).sentence
                if untold:
                    print(untold, file=sys.stderr)  # noqa: T201 - for the person at the terminal


def guard(folder: Path, spec: RunSpec) -> None:
    """Refuse a run folder that belongs to another recipe; the message gives the ways out."""
    path = folder / "run.json"
    body = {"verb": spec.verb, "seed": spec.seed, **spec.body}
    if path.exists():
        if json.loads(path.read_text()) != json.loads(json.dumps(body)):
            raise UsageError(
                f"run {spec.name} exists with other settings ({path})",
                hint="give this one another name with --run, repeat the settings it had, or delete its folder",
            )
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(body, indent=1, sort_keys=True))
    temporary.replace(path)


def _label_flow_run(spec: RunSpec) -> None:
    """Call the flow run in Prefect what the run is called here."""
    from prefect import get_client  # noqa: PLC0415 - as in _facts
    from prefect.runtime import flow_run  # noqa: PLC0415

    if flow_run.id:
        with get_client(sync_client=True) as client:
            given: list[str] = flow_run.tags or []
            tags = sorted({*given, "gradus", spec.verb})
            client.update_flow_run(UUID(flow_run.id), name=spec.name, tags=tags)


def _facts(spec: RunSpec) -> dict[str, Any]:
    from prefect.runtime import flow_run  # noqa: PLC0415 - read inside the running flow

    return {
        "run": spec.name,
        "verb": spec.verb,
        "params": spec.body,
        "prefect_flow_run_id": flow_run.id or "",
        "git_sha": git_sha(Path(__file__).parent),
    }
