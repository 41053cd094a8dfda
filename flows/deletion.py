"""Deleting a run: its folder, the artifacts that it alone has, its rows in MLflow; what would go, and doing it."""

import contextlib
import os
import shutil
from pathlib import Path

from gradus.data.errors import CorruptArtifactError, GradusError, LockedError
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.lake.upgrade import open_lake
from gradus.data.runlock import RunLock
from gradus.flows.console.output import aside
from gradus.flows.console.room_tables import Deleted
from gradus.flows.loop.pruned_runs import used_by_others
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import run_folder
from gradus.tasks.runs.run_cache import Sizes
from gradus.tasks.runtime.pruning import computed_by
from gradus.tasks.servers.mlflow_login import mlflow_login
from gradus.tasks.tracking.client import tracking_uri
from gradus.tasks.tracking.loop import RefusedError, UnreachableError
from gradus.tasks.tracking.state import STATE


def plan_deleting(home: Home, run: str) -> Deleted:
    """What deleting a run would remove; nothing is changed."""
    store, folder = open_lake(home.lake, aside), run_folder(home.runs, run)
    return _deleted(store, folder, *_planned(home, store, folder), done=False)


def delete_run(home: Home, run: str) -> Deleted:
    """Delete a run, its folder before the artifacts, so that no run misses any; LockedError if it runs."""
    store, folder = open_lake(home.lake, aside), run_folder(home.runs, run)
    with RunLock(folder, hint="wait for it or stop it"):
        going, staying = _planned(home, store, folder)
        found = _deleted(store, folder, going, staying, done=True)
        if (folder / STATE).is_file():
            _forget(home, folder)
        shutil.rmtree(folder)
    for ref in going:
        with contextlib.suppress(LockedError), RunLock(store.path(ref)):  # another run may be computing it just now
            store.discard(ref)
            shutil.rmtree(store.path(ref))
    return found


def _planned(home: Home, store: Store, folder: Path) -> tuple[list[Ref], int]:
    """The artifacts that go, with train states, and the number of those that stay because others have them."""
    kept = _with_parents(store, used_by_others(home, folder))
    made = {ref for ref in computed_by(folder) if store.path(ref).is_dir()}
    going = made - kept
    states = {state_ref(ref) for ref in going if ref.table == CHECKPOINTS}
    return sorted({*going, *(ref for ref in states if store.path(ref).is_dir())}, key=str), len(made & kept)


def _with_parents(store: Store, refs: set[Ref]) -> set[Ref]:
    """Artifacts and everything that they were made of."""
    found, new = set[Ref](), list(refs)
    while new:
        ref = new.pop()
        if ref not in found:
            found.add(ref)
            manifest = store.find(ref)
            new += [Ref.parse(text) for texts in manifest.parents.values() for text in texts] if manifest else []
    return found


def _deleted(store: Store, folder: Path, going: list[Ref], staying: int, *, done: bool) -> Deleted:
    sizes, heard = Sizes(store.root), list[CorruptArtifactError]()
    num_bytes = sum(sizes.of(str(ref), heard.append) or 0 for ref in going)
    tables = [ref.table for ref in going]
    own = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "run": folder.name,
        "bytes": num_bytes + own,
        "artifacts": {table: tables.count(table) for table in sorted(set(tables))},
        "staying": staying,
        "done": done,
    }


def _forget(home: Home, folder: Path) -> None:
    """Mark the rows of the run in MLflow as deleted; a server that does not answer keeps them."""
    from gradus.tasks.tracking.reporter import forget  # noqa: PLC0415 - the tracker is slow to import

    os.environ |= mlflow_login(home.root, tracking_uri(home.root))
    try:
        forget(folder)
    except (UnreachableError, RefusedError, GradusError) as error:
        aside(f"note: MLflow keeps its rows of {folder.name}: {error}")
