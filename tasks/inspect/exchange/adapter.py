"""An adapter out of the lake: as peft takes it, or merged into its base as a whole policy."""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

from gradus.data.errors import BadInputError
from gradus.data.files import replace_file, replacing
from gradus.data.lake.store import Ref, Store
from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.policy import PolicyError, load_policy
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TOKENIZER_FILES
from gradus.tasks.inspect.exchange.base_name import BaseName

_MERGED = ".merged"


def write_adapter(store: Store, ref: Ref, base: BaseName, folder: Path) -> list[str]:
    """Write an adapter whose configuration calls its base by a name; return the names of the files."""
    config = json.loads((store.path(ref) / ADAPTER_CONFIG).read_bytes())
    config |= {"base_model_name_or_path": base.name, "revision": base.revision}
    folder.mkdir(parents=True, exist_ok=True)
    held = [entry.name for entry in store.manifest(ref).files]
    names = [name for name in held if any(fnmatch(name, pattern) for pattern in (ADAPTER_WEIGHTS, *TOKENIZER_FILES))]
    for name in names:
        with replacing(folder / name) as temporary:
            shutil.copyfile(store.path(ref) / name, temporary)
    replace_file(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, sort_keys=True))
    return [*names, ADAPTER_CONFIG]


def write_merged(store: Store, ref: Ref, folder: Path) -> list[str]:
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
