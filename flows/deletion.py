"""Delete a run: its folder, the artifacts that it alone has, its rows in MLflow; also as a forecast."""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from gradus.data.errors import CorruptArtifactError, GradusError, LockedError
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.runlock import run_lock
from gradus.flows.console.answers import Deleted
from gradus.flows.console.output import aside
from gradus.flows.loop.pruned_runs import used_by, used_by_others
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import run_folder, run_folders
from gradus.tasks.runs.journal import num_bytes
from gradus.tasks.runs.listing import Sizes
from gradus.tasks.runtime.pruning import computed_by
from gradus.tasks.servers.home_servers import mlflow_login
from gradus.tasks.tracking.client import STATE, RefusedError, UnreachableError, tracking_uri


def plan_deleting(home: Home, run: str) -> Deleted:
    """Return the files that deleting a run would remove; nothing is changed."""
    store, folder = Store(home.lake), run_folder(home.runs, run)
    going, staying = _planned(home, store, folder)
    return _deleted(folder.name, _own_bytes(folder), _sizes(store, going), staying, done=False)


def delete_run(home: Home, run: str) -> Deleted:
    """Delete a run, its folder before the artifacts, so that no run misses any; LockedError if it runs.

    A run that begins to use an artifact meanwhile keeps it: it names it in its journal under the artifact's lock, and
    journals are read again under that lock. An artifact is deleted before its inputs, so that none that is left lacks
    them. Not covered: an artifact that a command names as an input can be deleted until the journal names it; the stage
    then fails.
    """
    store, folder = Store(home.lake), run_folder(home.runs, run)
    with run_lock(folder, hint="wait for it or stop it"):
        going, staying = _planned(home, store, folder)
        sizes, own_bytes = _sizes(store, going), _own_bytes(folder)
        if (folder / STATE).is_file():
            _forget(home, folder)
        shutil.rmtree(folder)
    seen, used, gone = dict[Path, int](), set[Ref](), dict[Ref, int]()
    for ref in going:
        with contextlib.suppress(LockedError), run_lock(store.path(ref)):  # another run may be computing it just now
            now = {each: num_bytes(each) for each in run_folders(home.runs)}
            if now != seen:  # a journal has changed: all are read again
                seen, used = now, _with_parents(store, used_by(now))
                used |= {state_ref(each) for each in used if each.table == CHECKPOINTS}
            if ref not in used:
                store.discard(ref)
                shutil.rmtree(store.path(ref), ignore_errors=True)  # another can have made its lock in it meanwhile
                gone[ref] = sizes[ref]
    return _deleted(folder.name, own_bytes, gone, staying + len(going) - len(gone), done=True)


def _planned(home: Home, store: Store, folder: Path) -> tuple[list[Ref], int]:
    """Return the artifacts to delete, with train states, and the number kept because other runs have them.

    Each comes before its inputs, and a checkpoint before its train state.
    """
    kept = _with_parents(store, used_by_others(home, folder))
    made = {ref for ref in computed_by(folder) if store.path(ref).is_dir()}
    going: dict[Ref, list[Ref]] = {}
    for ref in sorted(made - kept, key=str):
        states = [state_ref(ref)] if ref.table == CHECKPOINTS and store.path(state_ref(ref)).is_dir() else []
        going[ref] = [*_parents(store, ref), *states]
        going |= {state: [] for state in states}
    order = TopologicalSorter(going).static_order()
    return [ref for ref in reversed(list(order)) if ref in going], len(made & kept)


def _with_parents(store: Store, refs: set[Ref]) -> set[Ref]:
    found, new = set[Ref](), list(refs)
    while new:
        ref = new.pop()
        if ref not in found:
            found.add(ref)
            new += _parents(store, ref)
    return found


def _parents(store: Store, ref: Ref) -> list[Ref]:
    manifest = store.find(ref)
    return [Ref.parse(text) for texts in manifest.parents.values() for text in texts] if manifest else []


def _sizes(store: Store, refs: list[Ref]) -> dict[Ref, int]:
    sizes, heard = Sizes(store), list[CorruptArtifactError]()
    return {ref: sizes.of(str(ref), heard.append) or 0 for ref in refs}


def _own_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _deleted(run: str, own_bytes: int, sizes: Mapping[Ref, int], staying: int, *, done: bool) -> Deleted:
    artifacts = Counter(ref.table for ref in sizes)
    return {
        "run": run,
        "bytes": own_bytes + sum(sizes.values()),
        "artifacts": {table: artifacts[table] for table in sorted(artifacts)},
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
