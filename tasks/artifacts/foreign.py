"""Artifacts in a folder from elsewhere: verified before anything is written, copied under the lock.

    ref = taken(store, Path("gift"), "rollouts")

The folder's contents decide no path: names are checked when its manifest is read, links are refused, and only files
that the manifest names, with the digests that it names, are copied into the lake.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.columns import SCHEMA_VERSION
from gradus.data.lake.manifest import FILE_NAME, Manifest, read_manifest
from gradus.data.lake.names import regular_file
from gradus.data.lake.pruned import pruned_files
from gradus.data.lake.schema import BASE, CHECKPOINTS, TABLES, misfit
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.lake.whole_files import verified_files
from gradus.models.policy_files import ADAPTER_CONFIG
from gradus.tasks.artifacts.policies import refuse_other_weights
from gradus.tasks.preflight.checks import ASK_AGAIN, artifact_in

STATE = "train_state"
"""The folder of a copied checkpoint that has its train state."""


@dataclass(frozen=True)
class _Verified:
    """The manifest of a folder from elsewhere and the files that it names, each with the bytes that it says."""

    manifest: Manifest
    files: Mapping[str, Path]

    @classmethod
    def read(cls, folder: Path) -> "_Verified":
        regular_file(folder, FILE_NAME)
        manifest = read_manifest(folder, ASK_AGAIN)
        if manifest.schema_version > SCHEMA_VERSION:
            raise CorruptArtifactError(
                f"{folder} was written by a newer version (schema {manifest.schema_version})",
                hint="upgrade gradus to read it",
            )
        if pruned_files(folder, manifest.files):
            raise BadInputError(f"files of {folder} were pruned", hint="restore them there first: `gradus restore`")
        return cls(manifest, verified_files(folder, manifest.files, ASK_AGAIN))


def taken(store: Store, folder: Path, table: str) -> Ref:
    """Return the artifact of a folder from elsewhere, copied into the lake unless it is there.

    A checkpoint is taken with the base below an adapter and its train state, if they lie beside it. Raise UsageError
    for an artifact of another table, CorruptArtifactError or BadInputError if anything of it cannot be taken.
    """
    ref = artifact_in(folder, table)
    if store.find(ref) is None:
        for each in _wanted(store, folder):
            store.take(each.manifest, each.files)
    return ref


def _wanted(store: Store, folder: Path) -> list[_Verified]:
    """Return the artifacts to take, in order; nothing is written before all are checked."""
    found = _Verified.read(folder)
    if found.manifest.table != CHECKPOINTS:
        _refuse_misfits(found)
        return [found]
    refuse_other_weights(found.files)
    base = _base(folder, found.manifest)
    below = [] if base is None or store.find(base) is not None else [_beside(folder, base)]
    _refuse_other_base(found, base)
    return [*below, found, *_train_state(store, folder, found.manifest.ref)]


def _refuse_misfits(found: _Verified) -> None:
    """Raise BadInputError if a shard is not Parquet, or has other types than its table."""
    table = found.manifest.table
    for shard in found.manifest.shards if table in TABLES else ():
        path = found.files[shard.name]
        try:
            odd = misfit(pq.read_schema(path), TABLES[table])
        except (pa.ArrowException, OSError):
            odd = "it is no Parquet"
        if odd:
            raise BadInputError(f"{path} is no table of {table}: {odd}", hint="convert it first")


def _base(folder: Path, manifest: Manifest) -> Ref | None:
    """Return the policy below an adapter; None for a whole policy."""
    named = [Ref.parse(text) for text in manifest.parents.get(BASE, [])]
    if len(named) > 1 or any(each.table != CHECKPOINTS for each in named):
        raise BadInputError(f"{folder} names several bases, or one that is no checkpoint", hint=ASK_AGAIN)
    return named[0] if named else None


def _beside(folder: Path, base: Ref) -> _Verified:
    """Return the base of an adapter, which lies beside it under its own name."""
    place = folder.resolve().parent / base.digest
    if place.is_symlink() or not (place / FILE_NAME).is_file():
        raise BadInputError(
            f"{folder} is an adapter, and its base {base} is neither in the lake nor beside it",
            hint="import the base first: name it with --policy once",
        )
    found = _Verified.read(place)
    if found.manifest.ref != base or BASE in found.manifest.parents:
        raise BadInputError(f"{place} is not the whole policy {base}, the base of {folder}", hint=ASK_AGAIN)
    refuse_other_weights(found.files)
    _refuse_other_base(found, None)
    return found


def _refuse_other_base(found: _Verified, base: Ref | None) -> None:
    """Raise BadInputError if an adapter's configuration leads to another folder than that of its base in the lake."""
    for name, path in found.files.items():
        above, _, last = name.rpartition("/")
        if last != ADAPTER_CONFIG:
            continue
        expected = "../" * len(above.split("/") if above else []) + f"../{base.digest if base else ''}"
        try:
            named = json.loads(path.read_bytes())["base_model_name_or_path"]
        except (ValueError, KeyError, TypeError, RecursionError):
            named = None
        if base is None or named != expected:
            raise BadInputError(f"{path} does not lead to the base that its manifest names", hint=ASK_AGAIN)


def _train_state(store: Store, folder: Path, ref: Ref) -> list[_Verified]:
    """Return the train state below a copy of a checkpoint, or in the lake that the copy is in; nothing without one."""
    state, place = state_ref(ref), folder.resolve()
    for found in (place / STATE, place.parent.parent / state.table / state.digest):
        if found.is_symlink() or not (found / FILE_NAME).is_file() or store.find(state) is not None:
            continue
        regular_file(found, FILE_NAME)
        if read_manifest(found, ASK_AGAIN).ref == state:
            return [_Verified.read(found)]
    return []
