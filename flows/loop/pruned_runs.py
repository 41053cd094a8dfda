"""Prune the checkpoints of a run, or restore one; each as a forecast, too."""

from collections.abc import Iterable
from pathlib import Path

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import is_skipped, is_trained, is_whole, refuse_unrepeatable, updates_since_kept
from gradus.data.runlock import run_lock
from gradus.flows.console.answers import Freed, Restored
from gradus.flows.console.output import aside
from gradus.flows.console.progress_bar import StageView
from gradus.flows.recipe.config import KeepConfig
from gradus.tasks.config.settings import Home, thread_settings, wall_limit_s
from gradus.tasks.runs.history import ComputedSeconds, run_folder, run_folders
from gradus.tasks.runs.journal import Journal, read_events
from gradus.tasks.runtime.pruning import Removal, planned_removals, remove, updates_of
from gradus.tasks.runtime.supervise import Limits, WorkerPool

_RESTORE = "gradus.tasks.stages.update.replay:restored"


def plan_pruning(home: Home, run: str, keep: KeepConfig) -> Freed:
    """Return the files that pruning a run would remove and the cost of restoring them; nothing is changed."""
    store, folder = Store(home.lake), run_folder(home.runs, run)
    return _freed(folder, *_planned(home, store, folder, keep), done=False)


def prune_run(home: Home, run: str, keep: KeepConfig) -> Freed:
    """Remove weights and train states of the checkpoints of a run that are not to be kept; LockedError if it runs."""
    store, folder = Store(home.lake), run_folder(home.runs, run)
    with run_lock(folder, hint="wait for it or stop it; a recipe's `keep` prunes while it trains"):
        removals, spared = _planned(home, store, folder, keep)
        num_bytes = remove(store, removals, aside)
        if removals:
            Journal(folder).pruned([str(each.ref) for each in removals], num_bytes)
        return _freed(folder, removals, spared, done=True)


def plan_restoring(home: Home, name: str) -> Restored:
    """Return the cost of restoring a checkpoint: no update if it is present."""
    store, ref = Store(home.lake), Ref.parse(name)
    if not is_trained(store, ref):
        raise BadInputError(f"{name} was not made by an update", hint="give a checkpoint of `gradus show RUN`")
    if is_whole(store, ref):
        return {"checkpoint": name, "updates": 0, "seconds": 0.0, "done": False}
    computed = ComputedSeconds(home.runs)
    updates = updates_since_kept(store, ref)
    refuse_unrepeatable(store, ref, updates)
    seconds = sum(computed.of(str(update)) for update in updates)
    return {"checkpoint": name, "updates": len(updates), "seconds": round(seconds, 1), "done": False}


def restore_checkpoint(home: Home, name: str) -> Restored:
    """Compute a checkpoint again, in a process of its own."""
    planned = plan_restoring(home, name)
    job = {"stage": "restore", "lake": str(home.lake), "checkpoint": name}
    with WorkerPool(home.root / "logs" / "restore", thread_settings(), _RESTORE) as pool, StageView(rounds=0) as view:
        pool.run("policy", job, Limits(wall_s=wall_limit_s()), lambda frac, text: view.beat("restore", frac, text))
    return {**planned, "done": True}


def _planned(home: Home, store: Store, folder: Path, keep: KeepConfig) -> tuple[list[Removal], list[Ref]]:
    """Return the files to remove from a run's checkpoints, and the checkpoints kept because another run uses them."""
    updates = updates_of(folder)
    last = {row["round"]: Ref.parse(row["output"]) for row in updates}
    made = {index: last[index] for index in sorted(last) if not is_skipped(store, last[index])}
    seconds = {Ref.parse(row["output"]): row["seconds"] for row in updates if row["status"] == "finished"}
    chosen = [e["ref"] for e in read_events(folder) if e["event"] == "model_alias" and e["alias"] == "champion"]
    best = next((index for index, ref in made.items() if str(ref) in chosen[-1:]), None)
    others = used_by_others(home, folder)
    weights, states = keep.weights(list(made), best), keep.states(list(made))
    spared = [ref for index, ref in made.items() if ref in others and index not in weights & states]
    return planned_removals(store, made, weights, states, frozenset(others), seconds), spared


def used_by_others(home: Home, folder: Path) -> set[Ref]:
    """Return the artifacts that all other runs made, reused or read."""
    return used_by(other for other in run_folders(home.runs) if other != folder)


def used_by(folders: Iterable[Path]) -> set[Ref]:
    """Return the artifacts that runs made, reused or read."""
    found: set[str] = set()
    for folder in folders:
        for event in read_events(folder):
            if event["event"] == "stage_started" or event["event"] == "stage_reused":
                inputs = event.get("inputs", {}).values()
                found.update([event["output"], *(text for texts in inputs for text in texts)])
    return set(map(Ref.parse, found))


def _freed(folder: Path, removals: list[Removal], spared: list[Ref], *, done: bool) -> Freed:
    return {
        "run": folder.name,
        "bytes": sum(each.num_bytes for each in removals),
        "checkpoints": [
            {
                "round": each.round,
                "checkpoint": str(each.ref),
                "lost": ", ".join(
                    name for name, gone in (("weights", each.weights), ("train state", each.state)) if gone
                ),
                "bytes": each.num_bytes,
                "updates": each.num_updates,
                "seconds": round(each.seconds, 1),
                "repeats": each.repeats,
            }
            for each in removals
        ],
        "spared": [str(ref) for ref in spared],
        "done": done,
    }
