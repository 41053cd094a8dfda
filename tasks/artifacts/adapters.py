"""Updates that train a LoRA adapter: its policy in memory, its checkpoint, and its base as the reference.

The checkpoint holds what peft writes, and its manifest names the base as a parent; the base is never written again.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.seeds import derive_seed
from gradus.models.adapters import read_adapter
from gradus.models.errors import PolicyError
from gradus.models.policy import Policy, load_prompt_side
from gradus.models.training.checkpoint import TakeFile
from gradus.models.training.lora import adapter_files, add_lora, continue_lora, trained_parameters
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.parallel.sharding import shard
from gradus.tasks.artifacts.loading import loaded_policy
from gradus.tasks.artifacts.policies import base_ref, verify_policy
from gradus.tasks.config.learning import LoraConfig, UpdateConfig


def adapted_policy(store: Store, ref: Ref, config: UpdateConfig, lora: LoraConfig, seed: int, ranks: Ranks) -> Policy:
    """Return a policy with the LoRA layers that are to be trained: those of an adapter, new ones on a whole policy.

    Ranks divide the base, and each has the layers' matrices whole. Raise BadInputError if the adapter is another than
    the settings ask for, or does not fit its base.
    """
    if ranks.mesh is None:
        return _with_layers(store, ref, config, lora, seed)
    with ranks.in_turns():
        policy = _with_layers(store, ref, config.model_copy(update={"device": "cpu"}), lora, seed)
        matrices = trained_parameters(policy.model).values()
        shard(policy.model, ranks.mesh, getattr(torch, config.dtype), undivided=matrices)
    return policy


def _with_layers(store: Store, ref: Ref, config: UpdateConfig, lora: LoraConfig, seed: int) -> Policy:
    below = base_ref(store, ref)
    verify_policy(store, ref)
    policy = loaded_policy(store, below or ref, config.dtype, config.device, lora.quantize)
    try:
        if below is None:
            add_lora(policy.model, lora, derive_seed(seed, "lora"), f"../{ref.digest}")
            return policy
        continue_lora(policy.model, lora, read_adapter(store.path(ref)))
        return Policy(policy.model, load_prompt_side(store.path(ref)).tokenizer)
    except PolicyError as error:
        raise BadInputError(
            f"update.lora does not fit the policy: {error}",
            hint="set update.lora to what the policy has, or merge an adapter first: `gradus export --merge`",
        ) from None


def write_adapter(policy: Policy, weights: Mapping[str, Tensor], scratch: Path, take: TakeFile, up: str = "") -> None:
    """Write an adapter with its tokenizer to an empty folder, and let `take` move each file.

    `up` leads from the folder of the files to that of the checkpoint.
    """
    for name, content in adapter_files(policy.model, weights, up).items():
        (scratch / name).write_bytes(content)
    policy.tokenizer.save_pretrained(scratch)
    for path in sorted(scratch.iterdir()):
        take(path.name, path)


def begins_adapter(store: Store, policy: Ref, config: UpdateConfig) -> bool:
    """Return whether an update makes the first adapter of a policy, with an optimiser of its own."""
    return config.lora is not None and base_ref(store, policy) is None


def base_of_next(store: Store, policy: Ref) -> Ref:
    """The whole policy below the adapter that an update makes of a policy."""
    return base_ref(store, policy) or policy


def refers_to_base(store: Store, policy: Ref, reference: Ref, config: UpdateConfig) -> bool:
    """Return whether the reference is the base of the adapter in training, and so the same model without its layers."""
    return config.lora is not None and reference == base_of_next(store, policy)
