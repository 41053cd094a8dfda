"""A checkpoint as a folder that transformers, vLLM and a hub take: the policy alone, and a model card.

The train state, the critic and the table of the update stay in the lake. An adapter is written as peft takes it, or
merged into its base as a whole policy.
"""

import json
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from gradus.data.errors import BadInputError, OnDamage, refuse
from gradus.data.files import replace_file, replacing
from gradus.data.lake.manifest import FILE_NAME, NAMED, sha256_file
from gradus.data.lake.store import Ref, Store
from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.policy import PolicyError, load_policy
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TOKENIZER_FILES
from gradus.tasks.artifacts.policies import base_ref, verify_policy
from gradus.tasks.inspect.exchange.card import Prompting, example_of, model_card, source_of

CARD = "README.md"
_WHOLE = (
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "added_tokens.json",
    *TOKENIZER_FILES,
)  # fmt: skip
"""Names of the files that make a policy."""
_MERGED = ".merged"


def write_checkpoint(
    store: Store,
    runs: Path,
    ref: Ref,
    folder: Path,
    *,
    merge: bool = False,
    base_name: str = "",
    on_damage: OnDamage = refuse,
) -> list[str]:
    """Write a checkpoint's policy and its card into a folder; return the names of the files.

    An adapter is written as such, calling its base by a name or by what the user called it, or merged into its base.
    Raise BadInputError for a checkpoint without weights, and if there is nothing to merge or no base to name.
    """
    verify_policy(store, ref)
    base, named = base_ref(store, ref), ""
    if base is None and (base_name or merge):
        what, option = ("it has no base to name", "--base") if base_name else ("there is nothing to merge", "--merge")
        raise BadInputError(f"{ref} is a whole policy: {what}", hint=f"leave {option} out")
    if base is None:
        names = _copied(store, ref, _WHOLE, folder)
    elif merge:
        names = _write_merged(store, ref, folder)
    else:
        named = base_name or name_of(store, base)
        names = _write_adapter(store, ref, named, folder)
    source = source_of(store, runs, ref, on_damage)
    prompting = Prompting.of(store.path(ref), source["recipe"] if source else None)
    names += prompting.write(folder, whole=not named)
    example = example_of(store, source["main"] if source else None)
    replace_file(folder / CARD, model_card(ref, store.manifest(ref), source, named, prompting, example))
    return sorted({*names, CARD})


def _copied(store: Store, ref: Ref, patterns: Sequence[str], folder: Path) -> list[str]:
    """Copy files of an artifact by their names; raise BadInputError if no weights are among them."""
    held = [entry.name for entry in store.manifest(ref).files]
    names = [n for n in held if "/" not in n and n != FILE_NAME and any(fnmatch(n, pattern) for pattern in patterns)]
    if not any(name.endswith(".safetensors") for name in names):
        raise BadInputError(f"{ref} holds no weights in safetensors", hint="give a checkpoint that an update made")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with replacing(folder / name) as temporary:
            shutil.copyfile(store.path(ref) / name, temporary)
    return names


def _write_adapter(store: Store, ref: Ref, base: str, folder: Path) -> list[str]:
    """Write an adapter whose configuration calls its base by a name; return the names of the files."""
    name, revision = split_name(base)
    config = json.loads((store.path(ref) / ADAPTER_CONFIG).read_bytes())
    config |= {"base_model_name_or_path": name, "revision": revision}
    names = _copied(store, ref, (ADAPTER_WEIGHTS, *TOKENIZER_FILES), folder)
    replace_file(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, sort_keys=True))
    return [*names, ADAPTER_CONFIG]


def _write_merged(store: Store, ref: Ref, folder: Path) -> list[str]:
    """Write an adapter's base with the adapter added to its weights, as a whole policy in the base's number format.

    Return the names of the files. The weights are held against base and adapter before they are written.
    """
    try:
        policy = load_policy(store.path(ref))
        proof_of_merged(dict(policy.model.state_dict()), read_adapter(store.path(ref)))
    except (PolicyError, ValueError) as error:
        raise BadInputError(f"{ref} cannot be merged: {error}", hint="export it as an adapter") from None
    parts = folder / _MERGED
    parts.mkdir(parents=True)
    policy.model.save_pretrained(parts)
    policy.tokenizer.save_pretrained(parts)
    names = sorted(path.name for path in parts.iterdir())
    for name in names:
        (parts / name).rename(folder / name)
    parts.rmdir()
    return names


def name_of(store: Store, base: Ref) -> str:
    """Return the name by which a user's policy came into the lake: a folder, or `id@revision` on the hub.

    That is the path of the artifact if it was made in the lake, and if the folder has other files now.
    """
    manifest = store.manifest(base)
    name = manifest.config.get(NAMED, "")
    folder = Path(name)
    if name and not folder.is_absolute():
        return name
    same = all((folder / e.name).is_file() and sha256_file(folder / e.name) == e.sha256 for e in manifest.files)
    return name if name and same else str(store.path(base))


def split_name(text: str) -> tuple[str, str | None]:
    """Return the folder or the id that a base's name holds, and its revision.

    >>> split_name("Qwen/Qwen2.5-0.5B@060db64"), split_name("/mnt/models@site/one")
    (('Qwen/Qwen2.5-0.5B', '060db64'), ('/mnt/models@site/one', None))
    """
    name, _, revision = text.partition("@")
    is_folder = Path(text).is_absolute() or Path(text).exists()
    return (name, revision) if revision and not is_folder else (text, None)
