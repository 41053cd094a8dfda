"""A policy in the lake: a checkpoint, or an adapter beside the base that its manifest names as a parent.

In the lake an adapter's configuration leads to its base by digest (`../DIGEST`), so that the adapter's own digest, and
with it the identity of every rollout, depends on both.
"""

import json
import re
from pathlib import Path
from typing import Any

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.manifest import CURE, FILE_NAME, read_manifest, sha256_file
from gradus.data.lake.schema import BASE, CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TOKENIZER_FILES
from gradus.tasks.config.learning import LoraConfig

EMA = "ema"
"""The folder of a checkpoint that holds the moving average of its weights, a policy of its own."""
_DIGEST = re.compile(r"[0-9a-f]+")


def base_named_by(folder: Path) -> str:
    """What an adapter's configuration calls its base, with the revision if it names one; BadInputError if nothing."""
    name, revision = (_adapter_config(folder).get(key) or "" for key in ("base_model_name_or_path", "revision"))
    if not name:
        raise BadInputError(
            f"{folder / ADAPTER_CONFIG} does not name the adapter's base", hint=f"write --policy {folder}+BASE"
        )
    beside = folder / name
    if not Path(name).is_absolute() and beside.is_dir() and not Path(name).exists():
        return str(beside)
    return f"{name}@{revision}" if revision and not Path(name).exists() else name


def adopt_adapter(store: Store, folder: Path, base: Ref) -> Ref:
    """Store an adapter as a checkpoint that names its base by digest; what else lies in its folder is left there."""
    if base_ref(store, base) is not None:
        raise BadInputError(f"the base of {folder} is an adapter itself", hint="give the whole policy below both")
    names = {path.name for pattern in TOKENIZER_FILES for path in folder.glob(pattern)}
    _refuse_other_base(folder, base)
    config = {**_adapter_config(folder), "base_model_name_or_path": f"../{base.digest}", "revision": None}
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise BadInputError(
            f"{folder} has no {ADAPTER_WEIGHTS}, and other formats can run code", hint="save it with safetensors"
        )
    files: dict[str, Path | bytes] = {name: folder / name for name in (*names, ADAPTER_WEIGHTS)}
    files[ADAPTER_CONFIG] = json.dumps(config, indent=2, sort_keys=True).encode()
    return store.adopt_files(files, parents={BASE: [str(base)]})


def _refuse_other_base(folder: Path, base: Ref) -> None:
    """BadInputError if an adapter of a lake names its base by digest, and that is another one."""
    named = str(_adapter_config(folder).get("base_model_name_or_path") or "").removeprefix("../").removeprefix("../")
    if len(named) == len(base.digest) and _DIGEST.fullmatch(named) and named != base.digest:
        raise BadInputError(
            f"{folder} is an adapter for another base: it was trained on {CHECKPOINTS}/{named}, not on {base}",
            hint=f"write --policy {folder}",
        )


def base_ref(store: Store, ref: Ref) -> Ref | None:
    """The checkpoint below an adapter; None for a whole policy."""
    parents = store.manifest(ref).parents.get(BASE)
    return Ref.parse(parents[0]) if parents else None


def verify_policy(store: Store, ref: Ref) -> None:
    """Check every file of a policy, and of the base below it, against its SHA-256."""
    store.verify(ref)
    base = base_ref(store, ref)
    if base is not None:
        store.verify(base)


def verify_average(folder: Path) -> None:
    """Check the moving average of a checkpoint against the checkpoint's manifest; nothing of another folder."""
    if folder.name != EMA or not (folder.parent / FILE_NAME).is_file():
        return
    entries = [e for e in read_manifest(folder.parent).files if (folder.parent / e.name).parent == folder]
    if not entries:
        raise BadInputError(
            f"{folder} belongs to no checkpoint: {folder.parent / FILE_NAME} names no moving average",
            hint="give a checkpoint that was trained with update.ema_decay",
        )
    for entry in entries:
        path = folder.parent / entry.name
        if not (path.is_file() and sha256_file(path) == entry.sha256):
            raise CorruptArtifactError(f"{path} does not have the bytes that its manifest names", hint=CURE)


def refuse_training(store: Store, ref: Ref, lora: LoraConfig | None = None) -> None:
    """BadInputError if a policy is an adapter and no such adapter is to be trained."""
    if base_ref(store, ref) is None:
        return
    config = _adapter_config(store.path(ref))
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if lora is None:
        raise BadInputError(
            f"{ref} is an adapter: update.lora trains it, anything else needs it merged into its base",
            hint=f'set update.lora="{{rank={rank}, alpha={alpha}}}", or `gradus export {ref} --merge --to FOLDER`',
        )
    for name, found, wanted in (("rank", rank, lora.rank), ("alpha", alpha, lora.alpha)):
        if found != wanted:
            raise BadInputError(
                f"{ref} is an adapter of {name} {found}, and update.lora has {name} = {wanted}",
                hint=f'set update.lora="{{rank={rank}, alpha={alpha}}}" to go on from it',
            )


def _adapter_config(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInputError(f"{path} is not JSON ({error})", hint="save the adapter with peft") from None
    if not isinstance(config, dict):
        raise BadInputError(f"{path} is not a JSON object", hint="save the adapter with peft")
    return config
