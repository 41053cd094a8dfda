"""The train state of a checkpoint: an artifact of its own, named by the checkpoint, which may be gone.

    files = state_files(store, checkpoint)      # None if it is not kept

`train_states/<digest>/` holds what a training continues from beside the policy (optimiser, masters, average, critic,
random numbers, cursor). Its manifest names the policy's weights that it belongs to. A checkpoint of before had these
files beside its weights, which are still read.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.manifest import FileEntry, identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject

TRAIN_STATES = "train_states"
POINTER = "train_state.json"
"""The file of a checkpoint that names its train state; a policy from elsewhere has none."""
CHECKPOINT = "checkpoint"
"""The role in which a train state names its checkpoint."""
_BEFORE = {
    "optimizer.state": "optimizer.safetensors",
    "rng.state": "rng.safetensors",
    "master.state": "masters.safetensors",
    "ema.state": "ema.safetensors",
    "critic.state": "critic.safetensors",
    "critic_optimizer.state": "critic_optimizer.safetensors",
    "state.json": "state.json",
}
"""What these files were called beside the weights."""
_WEIGHTS = "weights"


def state_identity(checkpoint: Ref) -> JsonObject:
    """What the name of a checkpoint's train state is computed from."""
    return {"table": TRAIN_STATES, CHECKPOINT: str(checkpoint)}


def state_ref(checkpoint: Ref) -> Ref:
    """The train state of a checkpoint, kept or not."""
    return Ref(TRAIN_STATES, identity_digest(state_identity(checkpoint)))


def pointer(checkpoint: Ref, step: int, optimizer: str) -> bytes:
    """The content of POINTER: the name of the train state, its optimiser and the optimiser steps taken until then."""
    return json.dumps({"train_state": str(state_ref(checkpoint)), "optimizer": optimizer, "step": step}).encode()


def is_trained(store: Store, checkpoint: Ref) -> bool:
    """Whether a training made the checkpoint, so that it has, or had, a train state."""
    return bool({POINTER, *_BEFORE} & _names(store, checkpoint))


def state_files(store: Store, checkpoint: Ref) -> dict[str, Path] | None:
    """The verified files of a checkpoint's train state by name; None if it is not kept.

    Raise CorruptArtifactError if it belongs to other weights than the checkpoint has.
    """
    if before := _names(store, checkpoint) & set(_BEFORE):
        found = {_BEFORE[name]: store.file(checkpoint, name) for name in before}
        return {name: path for name, path in found.items() if path is not None}
    ref = _named(store, checkpoint)
    if ref is None or store.find(ref) is None or store.pruned(ref):
        return None
    manifest = store.verify(ref)
    if manifest.config.get(_WEIGHTS) != weight_sums(store.manifest(checkpoint).files):
        raise CorruptArtifactError(
            f"{store.path(ref)} is the train state of other weights than {checkpoint} has",
            hint=f"delete its folder: the updates before {checkpoint} are then computed again",
        )
    return {entry.name: store.path(ref) / entry.name for entry in manifest.files}


def weights_config(entries: Iterable[FileEntry]) -> JsonObject:
    """What the manifest of a train state says of the weights that it belongs to."""
    return {_WEIGHTS: weight_sums(entries)}


def weight_sums(entries: Iterable[FileEntry]) -> Mapping[str, str]:
    """SHA-256 of a policy's weights by file name, those in folders below left out."""
    return {e.name: e.sha256 for e in entries if e.name.endswith(".safetensors") and "/" not in e.name}


def _named(store: Store, checkpoint: Ref) -> Ref | None:
    """The train state that a checkpoint names; that of the original where its folder was copied."""
    content = store.read_file(checkpoint, POINTER)
    return None if content is None else Ref.parse(str(json.loads(content)["train_state"]))


def _names(store: Store, checkpoint: Ref) -> set[str]:
    return {entry.name for entry in store.manifest(checkpoint).files}
