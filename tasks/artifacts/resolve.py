"""Resolve inputs of the command line to artifacts: a reference, a lake folder, a file, a policy folder.

resolve_artifact(store, "my_rollouts.jsonl", "rollouts")     # the file's rows, named by their content
resolve_artifact(store, "rollouts/0f3c...", "rollouts")      # an artifact that exists
resolve_artifact(store, "my_lora+bundled", "checkpoints")    # an adapter and the policy below it
resolve_artifact(store, "checkpoints/0f3c.../ema", "checkpoints")   # the moving average of a checkpoint's weights
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, UsageError, in_words
from gradus.data.lake.manifest import FILE_NAME, Manifest, read_manifest
from gradus.data.lake.schema import BASE, CHECKPOINTS, TABLES, misfit
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.sources.tabular import read_user_table
from gradus.models.policy_files import ADAPTER_CONFIG, CONFIG, is_adapter
from gradus.tasks.artifacts.policies import adopt_adapter, base_named_by, verify_average
from gradus.tasks.preflight.checks import REFERENCE, average_of, bundled, full_name, no_policy, not_there

_STATE = "train_state"
"""The folder of a copied checkpoint that has its train state."""


def resolve_artifact(store: Store, text: str, table: str, columns: dict[str, str] | None = None) -> Ref:
    """The artifact that `text` names; BadInputError or UsageError if it names none."""
    found = _existing(store, text, table)
    if found is not None:
        return found
    if table == CHECKPOINTS:
        return _policy(store, text)
    path = bundled(text) or Path(text)
    if not path.is_file():
        raise not_there(text, table)
    rows, _refused = read_user_table(path, TABLES[table], columns or {}, strict=True)
    return store.put(table, _with_keys(rows, table))


def export(store: Store, ref: Ref, out: Path) -> Path:
    """Copy an artifact out of the lake: to one .parquet or .jsonl file, or to a folder."""
    if ref.table == CHECKPOINTS or out.suffix not in (".parquet", ".jsonl"):
        manifest = store.verify(ref)
        _remove_earlier(out, {entry.name for entry in manifest.files})
        shutil.copytree(store.path(ref), out, dirs_exist_ok=True)
        _copy_state(store, ref, out)
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = store.read(ref)
    if out.suffix == ".parquet":
        pq.write_table(rows, out, compression="zstd")
    else:
        with out.open("w", encoding="utf-8") as file:
            for batch in rows.to_batches(max_chunksize=1024):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())
    return out


def _copy_state(store: Store, ref: Ref, out: Path) -> None:
    """Copy a checkpoint's train state, if it has one, below the folder that the checkpoint was copied to."""
    shutil.rmtree(out / _STATE, ignore_errors=True)
    state = state_ref(ref)
    if ref.table == CHECKPOINTS and store.find(state) is not None and not store.pruned(state):
        store.verify(state)
        shutil.copytree(store.path(state), out / _STATE)


def _take_state(store: Store, folder: Path, ref: Ref) -> None:
    """Take the train state that lies below a copy of a checkpoint, or in the lake that its folder is in."""
    state = state_ref(ref)
    for found in (folder / _STATE, folder.resolve().parent.parent / state.table / state.digest):
        if (found / FILE_NAME).is_file() and store.find(state) is None:
            shutil.copytree(found, store.path(state), dirs_exist_ok=True)


def _remove_earlier(out: Path, kept: set[str]) -> None:
    """Remove what an artifact that was exported to this folder before has, and the next one has not."""
    if (out / FILE_NAME).is_file():
        for entry in read_manifest(out).files:
            if entry.name not in kept:
                (out / entry.name).unlink(missing_ok=True)


def _existing(store: Store, text: str, table: str) -> Ref | None:
    if REFERENCE.fullmatch(text):
        named = text.partition("/")[0]
        if named != table:
            raise UsageError(f"{text} is a {named} artifact", hint=f"give one of {table}")
        ref = Ref.parse(full_name(store.root, text))
        store.manifest(ref)
        return ref
    folder = Path(text)
    if not (folder / FILE_NAME).is_file():
        return None
    manifest = read_manifest(folder)
    ref = Ref(manifest.table, manifest.digest)
    if ref.table != table:
        raise UsageError(f"{text} holds {ref.table}", hint=f"give a folder of {table}")
    if store.find(ref) is None:
        _refuse_misfits(folder, manifest)
        for base in manifest.parents.get(BASE, []) if table == CHECKPOINTS else []:
            resolve_artifact(store, str(folder.resolve().parent / Ref.parse(base).digest), CHECKPOINTS)
        shutil.copytree(folder, store.path(ref), dirs_exist_ok=True, ignore=shutil.ignore_patterns(_STATE))
        store.verify(ref)
        if table == CHECKPOINTS:
            _take_state(store, folder, ref)
    return ref


def _refuse_misfits(folder: Path, manifest: Manifest) -> None:
    """Raise BadInputError if a shard of a folder from elsewhere has other types than its table."""
    for shard in manifest.shards if manifest.table in TABLES else ():
        odd = misfit(pq.read_schema(folder / shard.name), TABLES[manifest.table])
        if odd:
            raise BadInputError(
                f"{folder / shard.name} is no table of {manifest.table}: {odd}", hint="convert it first"
            )


def _policy(store: Store, text: str) -> Ref:
    """A policy folder, or one on the hub; an adapter with the base that it names, or that follows it after a plus."""
    above, plus, below = (text, "", "") if Path(text).is_dir() else text.partition("+")
    average = average_of(store.root, above)
    if average is not None:
        store.verify(Ref(CHECKPOINTS, average.parent.name))
    path = bundled(above) or average or Path(above)
    folder = path if path.is_dir() else _download(above)
    verify_average(folder)
    if is_adapter(folder):
        return adopt_adapter(store, folder, resolve_artifact(store, below or base_named_by(folder), CHECKPOINTS))
    if plus:
        raise UsageError(f"{above} is no adapter: it has no {ADAPTER_CONFIG}", hint=f"write --policy {above}")
    if not (folder / CONFIG).is_file():
        raise BadInputError(f"{text} has no {CONFIG}", hint="give a folder that transformers can load")
    return store.adopt(folder)


def _download(text: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow, and needed for hub ids alone
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    repository, _, revision = text.partition("@")
    if not revision:
        raise no_policy(text)
    try:
        return Path(snapshot_download(repository, revision=revision, ignore_patterns=["*.bin", "*.pt", "*.pth"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = in_words(error).message
        raise BadInputError(f"{text} cannot be fetched ({reason})", hint="give a local folder instead") from None


def _with_keys(rows: pa.Table, table: str) -> pa.Table:
    """Keys that a user's file may leave out, derived from what it has."""
    (key, *others) = TABLES[table].key
    if others or (key in rows.column_names and rows.column(key).null_count == 0):
        return rows
    derived: list[str] = []
    seen: Counter[str] = Counter()
    for problem_id in rows.column("problem_id").to_pylist():
        derived.append(
            f"{problem_id}:{seen[problem_id]}" if key == "rollout_id" else f"{problem_id}@r0h{seen[problem_id]}"
        )
        seen[problem_id] += 1
    if key in rows.column_names:
        rows = rows.drop_columns([key])
    return rows.append_column(key, pa.array(derived, pa.string()))
