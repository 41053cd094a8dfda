"""The train state of a checkpoint: an artifact of its own, named by the checkpoint, which may be gone.

`train_states/<digest>/` holds what a training continues from beside the policy (optimiser, masters, average, critic,
random numbers, cursor). Its manifest names the policy's weights that it belongs to.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gradus.data.errors import CorruptArtifactError, StageError
from gradus.data.lake.manifest import CURE, POINTER, REPORT, FileEntry, identity_digest
from gradus.data.lake.schema import BASE
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject

TRAIN_STATES = "train_states"
CHECKPOINT = "checkpoint"
"""The role in which a train state names its checkpoint."""


def state_identity(checkpoint: Ref) -> JsonObject:
    """Return the identity from which the name of a checkpoint's train state is computed."""
    return {"table": TRAIN_STATES, CHECKPOINT: str(checkpoint)}


def state_ref(checkpoint: Ref) -> Ref:
    """The train state of a checkpoint, kept or not."""
    return Ref(TRAIN_STATES, identity_digest(state_identity(checkpoint)))


def pointer(checkpoint: Ref, *, step: int, optimizer: str, threads: int, repeats: bool) -> bytes:
    """The content of POINTER: the name of the train state, its optimiser, the steps taken until then, the threads.

    `repeats` is true if the same update makes the same bits again.
    """
    named = {"train_state": str(state_ref(checkpoint)), "optimizer": optimizer, "step": step, "threads": threads}
    return json.dumps({**named, "repeats": repeats}).encode()


def is_trained(store: Store, checkpoint: Ref) -> bool:
    """Return whether a training made the checkpoint, so that it has, or had, a train state."""
    return any(entry.name == POINTER for entry in store.manifest(checkpoint).files)


def is_skipped(store: Store, checkpoint: Ref) -> bool:
    """Return whether the update of that name was skipped, so that it has a report and no policy."""
    manifest = store.find(checkpoint)
    return manifest is not None and [entry.name for entry in manifest.files] == [REPORT]


def state_files(store: Store, checkpoint: Ref) -> dict[str, Path] | None:
    """The verified files of a train state by name; None if not kept, CorruptArtifactError if it is of other weights."""
    ref = Ref.parse(pointer_of(store, checkpoint).train_state)  # the original's of a copied folder
    if store.find(ref) is None:
        return None
    manifest = store.verify(ref)
    if manifest.config != weights_config(store.manifest(checkpoint).files):
        raise CorruptArtifactError(
            f"{store.path(ref)} is the train state of other weights than {checkpoint} has",
            hint=f"delete its folder: the updates before {checkpoint} are then computed again",
        )
    return {entry.name: store.path(ref) / entry.name for entry in manifest.files}


def updates_since_kept(store: Store, ref: Ref) -> list[Ref]:
    """The updates to repeat for a checkpoint, oldest first, from a policy that is there; StageError if none is."""
    updates = [ref]
    while True:
        made = store.manifest(updates[0])
        base = made.parent("policy")
        if base is None or base in updates or store.find(base) is None:
            raise StageError(
                f"the train state of {ref} is gone, and {updates[0]}, a copy from elsewhere, "
                "does not have here what it was made from",
                hint=begin_afresh(ref),
            )
        new = made.parent(BASE) == base  # an adapter begins with its own optimiser
        if not store.pruned(base) if new else is_whole(store, base):
            return updates
        updates.insert(0, base)


def refuse_unrepeatable(store: Store, ref: Ref, updates: Iterable[Ref]) -> None:
    """Raise StageError if restoring the checkpoint needs an update that is not reproducible."""
    for update in updates:
        if not pointer_of(store, update).repeats:
            raise StageError(
                f"{ref} cannot be computed again: {update} was made on a GPU without update.deterministic, or by "
                "several processes, which make other bits each time",
                hint=begin_afresh(ref),
            )


def is_whole(store: Store, checkpoint: Ref) -> bool:
    """Return whether a checkpoint has its weights and, if a training made it, its train state."""
    if store.pruned(checkpoint):
        return False
    return not is_trained(store, checkpoint) or state_files(store, checkpoint) is not None


def begin_afresh(checkpoint: Ref) -> str:
    """Return the remedy to train a policy without the train state of its training."""
    return f"for a fresh optimiser train what `gradus export {checkpoint} --to FOLDER` writes"


def weights_config(entries: Iterable[FileEntry]) -> JsonObject:
    """Return the SHA-256 of a policy's weights by file name, none of folders below, as a state's manifest has them."""
    own = (each for each in entries if each.name.endswith(".safetensors") and "/" not in each.name)
    return {"weights": {each.name: each.sha256 for each in own}}


class Pointer(BaseModel):
    """Reference in a checkpoint to its train state and the update that made both."""

    train_state: str
    threads: int
    """The threads that the update computed with, on which the bits depend; 0 if that is not known."""
    repeats: bool
    """True if the same update makes the same bits again."""


def pointer_of(store: Store, checkpoint: Ref) -> Pointer:
    """Return what a checkpoint says, or what holds of one that no update made."""
    if (content := store.read_file(checkpoint, POINTER)) is None:
        return Pointer(train_state=str(state_ref(checkpoint)), threads=0, repeats=True)
    try:
        return Pointer.model_validate_json(content)
    except ValidationError:
        raise CorruptArtifactError(f"{POINTER} of {checkpoint} does not name a train state", hint=CURE) from None


def lineage(store: Store, policy: Ref, max_age: float = math.inf) -> dict[str, int]:
    """Return digest and age (in updates) of a policy and of those it was made of, as far as they are in the lake."""
    found: dict[str, int] = {}
    ref: Ref | None = policy
    while ref is not None and ref.digest not in found and len(found) <= max_age:
        found[ref.digest] = len(found)
        manifest = store.find(ref)
        ref = manifest.parent("policy") if manifest is not None else None
    return found
