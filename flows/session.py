"""Opening a run: its folder, its lock, its journal, its workers and the process that reports to MLflow."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from gradus.data.lake.store import Store
from gradus.data.runlock import run_lock
from gradus.flows.console.progress_bar import StageView
from gradus.flows.loop.reruns import other_settings
from gradus.flows.recipe.config import changed_files, same_run
from gradus.flows.recipe.reading import parse_recipe
from gradus.flows.verbs import say_started
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.settings import Home, reports_now, thread_settings
from gradus.tasks.inspect.report.at_end import write_at_end
from gradus.tasks.preflight.access import require_mlflow
from gradus.tasks.runs.history import read_story
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.listing import done_of
from gradus.tasks.runs.records import RunSettings, Status
from gradus.tasks.runs.run_settings import read_settings, write_settings
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.runtime.stage_adapter import Session, ending
from gradus.tasks.runtime.supervise import WorkerPool, kept_workers
from gradus.tasks.servers.abandoned_runs import close_abandoned, left_behind
from gradus.tasks.servers.home_servers import mlflow_login
from gradus.tasks.stages.update.launch.ranks import withdraw
from gradus.tasks.tracking.client import parting_words, start_sidecar, tracking_uri
from gradus.tasks.tracking.facts import REPORT_PAGE


@dataclass(frozen=True)
class RunSpec:
    """Identity of a run: settings that may not change while it keeps its name."""

    name: str
    verb: str
    seed: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    changed: Mapping[str, Sequence[str]] | None = None
    """Of a recipe: each setting that is not the default, with the default and its value."""
    forced: frozenset[tuple[str, int, str]] = frozenset()
    rounds: int = 0
    """Number of rounds in the progress display; 0 if it is unknown, or there are none."""


@contextlib.contextmanager
def open_session(spec: RunSpec, *, separate_sampler: bool = False) -> Generator[Session]:
    """A session on a run: lock held, workers supervised, events written to the journal, all closed at the end.

    `separate_sampler` runs sampling and learning at once, each in a worker with half of the threads.
    """
    home = Home.from_environment()
    uri = tracking_uri(home.root)
    login = mlflow_login(home.root, uri)
    if reports_now():
        require_mlflow(uri, login)
    folder, store = home.runs / spec.name, Store(home.lake)
    folder.mkdir(parents=True, exist_ok=True)
    left = left_behind(home.runs)
    with run_lock(folder):
        journal = Journal(folder)
        guard(folder, spec)
        journal.run_started(_facts(spec))  # before Prefect is asked: a run killed meanwhile is listed
        status: Status = "finished"
        why, sidecar = "", None
        outcomes: list[Outcome] = []
        try:
            close_abandoned(left)
            label_flow_run(spec.name, spec.verb)
            say_started(spec.name)
            sidecar = start_sidecar(folder, login) if reports_now() else None
            pool = WorkerPool(folder / "logs", env=thread_settings(1 + separate_sampler), kept=kept_workers.get())
            with pool, StageView(rounds=spec.rounds) as view:
                session = Session(
                    store,
                    journal,
                    pool,
                    spec.seed,
                    spec.forced,
                    separate_sampler,
                    on_progress=view.beat,
                    on_end=view.outcome,
                    on_wait=view.note,
                    restores=spec.verb == "train",
                    outcomes=outcomes,
                )
                with contextlib.closing(session):
                    yield session
        except BaseException as error:
            status, why = ending(error)
            raise
        finally:
            try:
                wanted = spec.verb == "train" and reports_now() and not _is_reported(folder, status, outcomes)
                # Before the journal ends: it is reported, and a failing report fails no run.
                if wanted and (failure := write_at_end(home.root, folder, status, why)):
                    print(hide(failure), file=sys.stderr)  # noqa: T201 - for the user at the terminal
            finally:
                withdraw(folder)
                journal.run_finished(status=status, error=why, so_far=done_of(folder, store))
            if sidecar is not None and (untold := parting_words(sidecar, folder, home.root)):
                print(untold, file=sys.stderr)  # noqa: T201 - for the user at the terminal


def _is_reported(folder: Path, status: Status, outcomes: Sequence[Outcome]) -> bool:
    """Return whether there is nothing new to report: nothing measured, or all reused and the report there already."""
    if status not in ("finished", "failed") or not any(
        end["status"] == "finished" for end in read_story(folder).ended.values()
    ):
        return True
    return status == "finished" and all(o.reused for o in outcomes) and (folder / REPORT_PAGE).exists()


def guard(folder: Path, spec: RunSpec) -> None:
    """Refuse a run folder that belongs to another recipe; the message says what to do.

    A body that an earlier version wrote, or one with other values of what may change, is replaced.
    """
    path = folder / "run.json"
    body = json.loads(json.dumps({"verb": spec.verb, "seed": spec.seed, **spec.body}))
    if path.exists():
        stored = read_settings(folder)
        if stored == body:
            return
        if not _continues(stored, body):
            raise other_settings(folder, changed_files(stored.get("recipe", {}), body.get("recipe", {})))
    write_settings(folder, body)


def _continues(stored: RunSettings, body: RunSettings) -> bool:
    """Return whether a training that this version stored, or an earlier one, continues with other settings."""
    if "recipe" not in stored or "recipe" not in body:
        return False
    one, other = (parse_recipe(each["recipe"], "the run's recipe") for each in (stored, body))
    return {**stored, "recipe": None} == {**body, "recipe": None} and same_run(one, other)


def label_flow_run(name: str, verb: str) -> None:
    """Rename the flow run in Prefect to the name of the run."""
    from prefect import get_client  # noqa: PLC0415 - as in _facts
    from prefect.runtime import flow_run  # noqa: PLC0415

    if flow_run.id:
        with get_client(sync_client=True) as client:
            given: list[str] = flow_run.tags or []
            tags = sorted({*given, "gradus", verb})
            client.update_flow_run(UUID(flow_run.id), name=name, tags=tags)


def _facts(spec: RunSpec) -> Mapping[str, object]:
    from prefect.runtime import flow_run  # noqa: PLC0415 - read inside the running flow

    return {
        "run": spec.name,
        "verb": spec.verb,
        "params": spec.body,
        **({} if spec.changed is None else {"changed": spec.changed}),
        "prefect_flow_run_id": flow_run.id or "",
        "git_sha": _git_sha(Path(__file__).parent),
    }


def _git_sha(folder: Path) -> str:
    """Return the commit of a checkout; empty outside one."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
