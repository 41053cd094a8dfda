"""Artifacts into the lake, and out of it.

Inputs of the command line are resolved to artifacts: a reference, a lake folder, a file, a policy folder.

    resolve_artifact(store, "my_rollouts.jsonl", "rollouts")     # the rows of a file, named by their content
    resolve_artifact(store, "rollouts/0f3c...", "rollouts")      # an artifact that exists
    resolve_artifact(store, "gift", "rollouts")                  # an artifact in a folder from elsewhere
    resolve_artifact(store, "my_lora+bundled", "checkpoints")    # an adapter and the policy below it
    resolve_artifact(store, "checkpoints/0f3c.../ema", "checkpoints")   # the moving average of its weights

An artifact from elsewhere is verified before anything is written, and copied under the lock. The contents of its folder
decide no path: names are checked when its manifest is read, links are refused, and only files that the manifest names,
with the digests that it names, are copied into the lake.

    export(store, ref, Path("out"))     # to a file or a folder

In a folder nothing is touched but what Gradus put there: a file that is there is replaced or removed only if it has the
bytes that the manifest in the folder says, or those to be written; everything is looked at before anything is changed.
The manifest is written last, so that a copy that was interrupted is finished by the same command.
"""

import contextlib
import itertools
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, CorruptArtifactError, UsageError, in_words
from gradus.data.files import replace_file, replacing
from gradus.data.lake.columns import SCHEMA_VERSION
from gradus.data.lake.manifest import FILE_NAME, Manifest, pruned_files, read_manifest, sha256_file
from gradus.data.lake.names import regular_file
from gradus.data.lake.schema import BASE, CHECKPOINTS, TABLES, misfit
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.lake.whole_files import verified_files
from gradus.data.sources.tabular import read_user_table
from gradus.models.policy_files import ADAPTER_CONFIG, CONFIG, WHOLE, is_adapter
from gradus.tasks.artifacts.policies import (
    adopt_adapter,
    base_named_by,
    policy_files,
    refuse_other_weights,
    refuse_skipped,
)
from gradus.tasks.preflight.checks import (
    ANOTHER,
    ASK_AGAIN,
    artifact_in,
    average_of,
    file_of,
    in_lake,
    manifest_of_copy,
    policy_folder,
)

_STATE = "train_state"
"""The folder of a copied checkpoint that has its train state."""
_Verified = tuple[Manifest, Mapping[str, Path]]
"""The manifest of a folder from elsewhere and the files that it names, each with the bytes that it says."""


def _verified(folder: Path) -> _Verified:
    regular_file(folder, FILE_NAME)
    manifest = read_manifest(folder, ASK_AGAIN)
    if manifest.schema_version > SCHEMA_VERSION:
        raise CorruptArtifactError(
            f"{folder} was written by a newer version (schema {manifest.schema_version})",
            hint="upgrade gradus to read it",
        )
    if pruned_files(folder, manifest.files):
        raise BadInputError(f"files of {folder} were pruned", hint="restore them there first: `gradus restore`")
    return manifest, verified_files(folder, manifest.files, ASK_AGAIN)


def taken(store: Store, folder: Path, table: str) -> Ref:
    """Return the artifact of a folder from elsewhere, copied into the lake unless it is there.

    A checkpoint is taken with the base below an adapter and its train state, if they lie beside it. Raise UsageError
    for an artifact of another table, CorruptArtifactError or BadInputError if anything of it cannot be taken.
    """
    ref = artifact_in(folder, table)
    if store.find(ref) is None:
        for each in _wanted(store, folder):
            store.take(*each)
    return ref


def _wanted(store: Store, folder: Path) -> list[_Verified]:
    """Return the artifacts to take, in order; nothing is written before all are checked."""
    manifest, files = _verified(folder)
    table = manifest.table
    if table != CHECKPOINTS:
        for path in [files[shard.name] for shard in manifest.shards] if table in TABLES else []:
            try:
                odd = misfit(pq.read_schema(path), TABLES[table])
            except (pa.ArrowException, OSError):
                odd = "it is no Parquet"
            if odd:
                raise BadInputError(f"{path} is no table of {table}: {odd}", hint="convert it first")
        return [(manifest, files)]
    refuse_other_weights(files)
    base = _base(folder, manifest)
    below = [] if base is None or store.find(base) is not None else [_beside(folder, base)]
    _refuse_other_base(files, base)
    return [*below, (manifest, files), *_train_state(store, folder, manifest.ref)]


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
    manifest, files = _verified(place)
    if manifest.ref != base or BASE in manifest.parents:
        raise BadInputError(f"{place} is not the whole policy {base}, the base of {folder}", hint=ASK_AGAIN)
    refuse_other_weights(files)
    _refuse_other_base(files, None)
    return manifest, files


def _refuse_other_base(files: Mapping[str, Path], base: Ref | None) -> None:
    """Raise BadInputError if an adapter's configuration leads to another folder than that of its base in the lake."""
    for name, path in files.items():
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
    for found in (place / _STATE, place.parent.parent / state.table / state.digest):
        if found.is_symlink() or not (found / FILE_NAME).is_file() or store.find(state) is not None:
            continue
        regular_file(found, FILE_NAME)
        if read_manifest(found, ASK_AGAIN).ref == state:
            return [_verified(found)]
    return []


def resolve_artifact(store: Store, text: str, table: str, columns: dict[str, str] | None = None) -> Ref:
    """The artifact that `text` names; BadInputError or UsageError if it names none."""
    found = in_lake(store.root, text, table)
    if found is not None:
        store.manifest(found)
    elif (Path(text) / FILE_NAME).is_file():
        found = taken(store, Path(text), table)
    elif table == CHECKPOINTS:
        return _policy(store, text)
    if found is not None:
        if table == CHECKPOINTS:
            refuse_skipped(store, found)
        return found
    path = file_of(text, table)
    rows = read_user_table(path, TABLES[table], columns or {})
    return store.put(table, _with_keys(rows, table))


def _policy(store: Store, text: str) -> Ref:
    """A policy folder, or one on the hub; an adapter with the base that it names, or that follows it after a plus."""
    above, plus, below = (text, "", "") if Path(text).is_dir() else text.partition("+")
    folder = policy_folder(store.root, above)
    named = above if not folder.is_dir() else str(folder.resolve()) if folder == Path(above) else ""
    if folder == average_of(store.root, above):
        store.verify(Ref(CHECKPOINTS, folder.parent.name))
    folder = folder if folder.is_dir() else _download(above)
    files = policy_files(folder)
    if ADAPTER_CONFIG in files:
        base = below or base_named_by(folder)
        if is_adapter(Path(base)) or ("+" in base and not Path(base).is_dir()):
            raise BadInputError(f"the base of {folder} is an adapter itself", hint="give the whole policy below both")
        return adopt_adapter(store, folder, files, resolve_artifact(store, base, CHECKPOINTS))
    if plus:
        raise UsageError(f"{above} is no adapter: it has no {ADAPTER_CONFIG}", hint=f"write --policy {above}")
    if CONFIG not in files:
        raise BadInputError(f"{text} has no {CONFIG}", hint=WHOLE)
    return store.adopt_files(files, {}, named)


def _download(text: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow, and needed for hub ids alone
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    repository, _, revision = text.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision, ignore_patterns=["*.bin", "*.pt", "*.pth"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = in_words(error).message
        raise BadInputError(f"{text} cannot be fetched ({reason})", hint="give a local folder instead") from None


def _with_keys(rows: pa.Table, table: str) -> pa.Table:
    """Return keys that a user's file may leave out, derived from the others."""
    (key, *others) = TABLES[table].key
    if others or (key in rows.column_names and rows.column(key).null_count == 0):
        return rows
    mark = ":" if key == "rollout_id" else "@r0h"
    seen: dict[str, itertools.count[int]] = defaultdict(itertools.count)
    derived = [f"{name}{mark}{next(seen[name])}" for name in rows.column("problem_id").to_pylist()]
    if key in rows.column_names:
        rows = rows.drop_columns([key])
    return rows.append_column(key, pa.array(derived, pa.string()))


def export(store: Store, ref: Ref, out: Path) -> Path:
    """Copy an artifact out of the lake: to one .parquet or .jsonl file, or to a folder."""
    if ref.table == CHECKPOINTS or out.suffix not in (".parquet", ".jsonl"):
        copies = [_planned_copy(out, store.path(ref), store.verify(ref))]
        if ref.table == CHECKPOINTS:
            state, place = state_ref(ref), out / _STATE
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                raise BadInputError(f"{place} is no folder of Gradus's", hint=ANOTHER)
            copies.append(_planned_copy(place, store.path(state), store.verify(state) if store.find(state) else None))
        for copy in copies:
            copy()
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    write_rows(store.read(ref), out)
    return out


def write_rows(rows: pa.Table, out: Path, *, nulls: bool = True) -> None:
    """Write a table to a .parquet file, or to one of JSON lines, which name what is null or leave it out."""
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            pq.write_table(rows, temporary, compression="zstd")
            return
        with temporary.open("w", encoding="utf-8") as file:
            for row in (row for batch in rows.to_batches(max_chunksize=1024) for row in batch.to_pylist()):
                kept = {name: value for name, value in row.items() if nulls or value is not None}
                file.write(json.dumps(kept, ensure_ascii=False) + "\n")


def _planned_copy(out: Path, source: Path, manifest: Manifest | None) -> Callable[[], None]:
    """Return a function that copies files of the lake into a folder; without a manifest it removes an earlier copy.

    Raise BadInputError or CorruptArtifactError for a file that is not Gradus's.
    """
    before, wanted = (
        {entry.name: entry for entry in each.files} if each else {} for each in (manifest_of_copy(out), manifest)
    )
    removed: list[Path] = []
    written = {name: source / name for name in wanted}
    for name in sorted({*before, *wanted}):
        try:
            path = regular_file(out, name)
        except FileNotFoundError:
            continue
        sha256 = sha256_file(path)
        if sha256 not in {known[name].sha256 for known in (before, wanted) if name in known}:
            raise BadInputError(f"{path} exists already, and Gradus did not write it so", hint=ANOTHER)
        if name not in wanted:
            removed.append(path)
        elif sha256 == wanted[name].sha256:
            del written[name]
    return partial(_copy, out, manifest, removed, written)


def _copy(out: Path, manifest: Manifest | None, removed: Sequence[Path], written: Mapping[str, Path]) -> None:
    """Remove files of an earlier copy, then write those of the lake, the manifest last."""
    for path in removed:
        path.unlink()
    if manifest is None:
        (out / FILE_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # none was there, or something of the user's is in it
            out.rmdir()
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, source in written.items():
        final = out / name
        final.parent.mkdir(parents=True, exist_ok=True)
        with replacing(final) as temporary:
            shutil.copyfile(source, temporary)
    replace_file(out / FILE_NAME, manifest.to_bytes())
