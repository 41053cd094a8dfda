"""Resolve inputs of the command line to artifacts: a reference, a lake folder, a file, a policy folder.

resolve_artifact(store, "my_rollouts.jsonl", "rollouts")     # the file's rows, named by their content
resolve_artifact(store, "rollouts/0f3c...", "rollouts")      # an artifact that exists
resolve_artifact(store, "my_lora+bundled", "checkpoints")    # an adapter and the policy below it
resolve_artifact(store, "checkpoints/0f3c.../ema", "checkpoints")   # the moving average of a checkpoint's weights
"""

from collections import Counter
from pathlib import Path

import pyarrow as pa

from gradus.data.errors import BadInputError, UsageError, in_words
from gradus.data.lake.manifest import FILE_NAME
from gradus.data.lake.schema import CHECKPOINTS, TABLES
from gradus.data.lake.store import Ref, Store
from gradus.data.sources.tabular import read_user_table
from gradus.models.policy_files import ADAPTER_CONFIG, CONFIG, WHOLE, is_adapter
from gradus.tasks.artifacts.foreign import taken
from gradus.tasks.artifacts.policies import adopt_adapter, base_named_by, policy_files, refuse_skipped
from gradus.tasks.preflight.checks import average_of, file_of, in_lake, policy_folder


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
    rows, _refused = read_user_table(path, TABLES[table], columns or {}, strict=True)
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
