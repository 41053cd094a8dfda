"""Making room: which checkpoints of a training lose their weights or train states, and what having them back takes.

Rollouts, scores, manifests and reports stay, so that a pruned checkpoint is known, is reused as it was, and can be
computed again to the bit (gradus.tasks.stages.update.replay). Only checkpoints of the stage update are pruned.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gradus.data.lake.manifest import weight_files
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import pointer_of, state_ref
from gradus.tasks.host.waiting import hold
from gradus.tasks.runs.history import Attempt, attempts


@dataclass(frozen=True)
class Removal:
    """Files to delete from a checkpoint, the bytes this frees, and the updates and seconds needed to restore them.

    They cannot be restored if one of those updates is not reproducible.
    """

    round: int
    ref: Ref
    weights: tuple[str, ...]
    state: bool
    num_bytes: int
    num_updates: int = 0
    seconds: float = 0.0
    repeats: bool = True


def updates_of(folder: Path) -> list[Attempt]:
    """Return the updates of a run's training rounds that ended well or were reused, in the order they began."""
    return [
        row
        for row in attempts(folder)
        if row["stage"] == "update" and row["purpose"] == "train" and row["status"] in ("finished", "reused")
    ]


def computed_by(folder: Path) -> frozenset[Ref]:
    """The artifacts that a run computed itself, and did not find."""
    return frozenset(Ref.parse(row["output"]) for row in attempts(folder) if row["attempt"])


def planned_removals(
    store: Store,
    made: Mapping[int, Ref],
    weights: Iterable[int],
    states: Iterable[int],
    spared: frozenset[Ref],
    seconds: Mapping[Ref, float] = MappingProxyType({}),
) -> list[Removal]:
    """Return the removals if only these rounds keep weights and train states; `spared` checkpoints lose nothing.

    `made` are checkpoints by round, `seconds` those that their updates took. What is gone already is left out.
    """
    kept, going_on = set(weights), set(states)
    found = [
        _removal(store, index, ref, weights=index not in kept, state=index not in going_on)
        for index, ref in made.items()
        if ref not in spared
    ]
    left = {index for index, ref in made.items() if index in kept & going_on or ref in spared}
    return [_with_cost(store, each, made, left, seconds) for each in found if each.num_bytes]


def remove(store: Store, removals: Iterable[Removal], say: Callable[[str], None]) -> int:
    """Remove what was planned; return the bytes freed.

    The lock of the train state, under which a checkpoint is restored, is taken first; `say` is called while it is held.
    """
    num_bytes = 0
    for each in removals:
        state = state_ref(each.ref)
        with hold(store.path(state), "", say):
            for name in each.weights:
                (store.path(each.ref) / name).unlink(missing_ok=True)
            if each.state:
                store.discard(state)
            store.remove_empty(state)
        num_bytes += each.num_bytes
    return num_bytes


def _removal(store: Store, index: int, ref: Ref, *, weights: bool, state: bool) -> Removal:
    manifest, kept = store.find(ref), store.find(state_ref(ref))
    if manifest is None or manifest.stage != "update":
        return Removal(index, ref, (), state=False, num_bytes=0)
    gone = store.pruned(ref)
    lost = [entry for entry in weight_files(manifest.files) if weights and entry.name not in gone]
    lost_state = kept.files if state and kept is not None else ()
    num_bytes = sum(entry.bytes for entry in (*lost, *lost_state))
    return Removal(index, ref, tuple(entry.name for entry in lost), state=bool(lost_state), num_bytes=num_bytes)


def _with_cost(
    store: Store, removal: Removal, made: Mapping[int, Ref], left: set[int], seconds: Mapping[Ref, float]
) -> Removal:
    """Count the updates between the last checkpoint that keeps all and this one; one of unknown time takes the mean."""
    before = max((index for index in left if index < removal.round), default=0)
    again = [ref for index, ref in made.items() if before < index <= removal.round]
    known = [seconds[ref] for ref in made.values() if seconds.get(ref)]
    usual = sum(known) / len(known) if known else 0.0
    same = all(pointer_of(store, ref).repeats for ref in again)
    cost_s = sum(seconds.get(ref) or usual for ref in again)
    return replace(removal, num_updates=len(again), seconds=cost_s, repeats=same)
