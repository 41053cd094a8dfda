"""Making room: which checkpoints of a training lose their weights or train states, and what having them back takes.

Rollouts, scores, manifests and reports stay, so that a pruned checkpoint is known, is reused as it was, and can be
computed again to the bit (gradus.tasks.stages.update.replay). Only checkpoints of the stage update are pruned.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradus.data.lake.manifest import weight_files
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import pointer_of, state_ref
from gradus.tasks.host.waiting import hold
from gradus.tasks.runs.history import attempts


@dataclass(frozen=True)
class Made:
    """A checkpoint that an update of a run ended in, and the seconds that the update took; 0 if it was reused."""

    round: int
    ref: Ref
    seconds: float = 0.0


@dataclass(frozen=True)
class Removal:
    """Files to delete from a checkpoint, the bytes this frees, and the updates and seconds needed to restore them.

    They cannot be restored if one of those updates is not reproducible.
    """

    made: Made
    weights: tuple[str, ...]
    state: bool
    num_bytes: int
    num_updates: int = 0
    seconds: float = 0.0
    repeats: bool = True


def made_by(folder: Path) -> list[Made]:
    """The checkpoints of a run's training rounds, by round: those of the last command that came to each."""
    seconds: dict[str, float] = {}
    last: dict[int, Ref] = {}
    for row in attempts(folder):
        if row["stage"] == "update" and row["purpose"] == "train" and row["status"] in ("finished", "reused"):
            last[row["round"]] = Ref.parse(row["output"])
            seconds[row["output"]] = max(row["seconds"], seconds.get(row["output"], 0.0))
    return [Made(index, last[index], seconds[str(last[index])]) for index in sorted(last)]


def computed_by(folder: Path) -> frozenset[Ref]:
    """The artifacts that a run computed itself, and did not find."""
    return frozenset(Ref.parse(row["output"]) for row in attempts(folder) if row["attempt"])


def planned_removals(
    store: Store, made: Sequence[Made], weights: Iterable[int], states: Iterable[int], spared: frozenset[Ref]
) -> list[Removal]:
    """Return the removals if only these rounds keep weights and train states; `spared` checkpoints lose nothing.

    What is gone already is left out.
    """
    kept, going_on = set(weights), set(states)
    found = [
        _removal(store, each, weights=each.round not in kept, state=each.round not in going_on)
        for each in made
        if each.ref not in spared
    ]
    left = {each.round for each in made if each.round in kept & going_on or each.ref in spared}
    return [_with_cost(store, each, made, left) for each in found if each.num_bytes]


def remove(store: Store, removals: Iterable[Removal], say: Callable[[str], None]) -> int:
    """Remove what was planned; return the bytes freed.

    The lock of the train state, under which a checkpoint is restored, is taken first; `say` is called while it is held.
    """
    num_bytes = 0
    for each in removals:
        state = state_ref(each.made.ref)
        with hold(store.path(state), "", say):
            for name in each.weights:
                (store.path(each.made.ref) / name).unlink(missing_ok=True)
            if each.state:
                store.discard(state)
            store.remove_empty(state)
        num_bytes += each.num_bytes
    return num_bytes


def _removal(store: Store, made: Made, *, weights: bool, state: bool) -> Removal:
    manifest, kept = store.find(made.ref), store.find(state_ref(made.ref))
    if manifest is None or manifest.stage != "update":
        return Removal(made, (), state=False, num_bytes=0)
    gone = store.pruned(made.ref)
    lost = [entry for entry in weight_files(manifest.files) if weights and entry.name not in gone]
    lost_state = kept.files if state and kept is not None else ()
    num_bytes = sum(entry.bytes for entry in (*lost, *lost_state))
    return Removal(made, tuple(entry.name for entry in lost), state=bool(lost_state), num_bytes=num_bytes)


def _with_cost(store: Store, removal: Removal, made: Sequence[Made], left: set[int]) -> Removal:
    """Count the updates between the last checkpoint that keeps all and this one."""
    before = max((index for index in left if index < removal.made.round), default=0)
    again = [each for each in made if before < each.round <= removal.made.round]
    known = [each.seconds for each in made if each.seconds]
    usual = sum(known) / len(known) if known else 0.0
    seconds = sum(each.seconds or usual for each in again)
    same = all(pointer_of(store, each.ref).repeats for each in again)
    return replace(removal, num_updates=len(again), seconds=seconds, repeats=same)
