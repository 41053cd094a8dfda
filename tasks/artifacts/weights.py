"""Weights between the lake and memory: policies loaded with their files checked, adapters to train, files written.

    policy = loaded_policy(store, ref, "float32", "auto")
    written(files, folder, ranks)    # by all ranks together; one process alone writes all

The checkpoint of an adapter holds what peft writes, and its manifest names the base as a parent; the base is never
written again. Of files that are written together the n-th goes to rank n modulo their number, so names and bytes are
those that one process writes. A rank has one file in memory: it gathers the next one once the last is on the disk, and
meanwhile others gather theirs.
"""

from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gradus.data.errors import BadInputError, GradusError, StageError, error_class, in_words
from gradus.data.lake.manifest import FileEntry
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.whole_files import entry_of, whole_file
from gradus.data.seeds import derive_seed
from gradus.models.adapters import read_adapter
from gradus.models.devices import Device, DeviceError, give_back, is_out_of_memory, resolve_device
from gradus.models.errors import PolicyError
from gradus.models.policy import Dtype, Policy, Quantize, load_policy, load_prompt_side
from gradus.models.policy_files import WHOLE
from gradus.models.training.lora import add_lora, continue_lora, trained_parameters
from gradus.models.training.parallel import Ranks, shard
from gradus.models.training.tensor_files import Collect, Write
from gradus.tasks.artifacts.policies import base_ref, verify_policy
from gradus.tasks.config.learning import LoraConfig, UpdateConfig

ROOM = "free memory where it computes, or set device to cpu"


@dataclass(frozen=True)
class PolicyKey:
    """Key of a loaded policy: its checkpoint, number format and device, as the settings name them."""

    digest: str
    dtype: Dtype
    device: Device


@dataclass
class LoadedPolicies:
    """Policies that a worker keeps loaded between two jobs."""

    by_key: dict[PolicyKey, Policy] = field(default_factory=dict[PolicyKey, Policy])
    verified: tuple[PolicyKey, Policy] | None = None
    """The last one whose weights were compared with the files of its checkpoint."""

    def clear(self) -> None:
        """Release all of them."""
        self.by_key.clear()
        self.verified = None


def place(device: Device) -> torch.device:
    """The device that a setting means; BadInputError if there is none."""
    try:
        return resolve_device(device)
    except DeviceError as error:
        raise BadInputError(str(error), hint="set device to auto, or install PyTorch for your GPU") from None


def loaded_policy(
    store: Store, ref: Ref, dtype: Dtype, device: Device, quantize: Quantize = "none", *, heads: bool = False
) -> Policy:
    """A policy of the lake, with `heads` or a reward model; BadInputError if it cannot be used, or not there."""
    verify_policy(store, ref)
    try:
        with oom_as_stage_error("loading the policy", ROOM):
            policy = load_policy(store.path(ref), dtype, place(device), quantize=quantize, heads=heads)
        if not heads:
            _ = policy.end_tokens
    except PolicyError as error:
        raise BadInputError(str(error).replace(str(store.path(ref)), str(ref)), hint=WHOLE) from None
    return policy


def divided_policy(store: Store, ref: Ref, dtype: Dtype, ranks: Ranks, compute_dtype: torch.dtype) -> Policy:
    """A policy of the lake whose parameters are divided among ranks; a host holds it whole once, while one loads it."""
    with ranks.in_turns():
        policy = loaded_policy(store, ref, dtype, "cpu")
        if ranks.mesh is not None:
            shard(policy.model, ranks.mesh, compute_dtype)
    return policy


@contextmanager
def oom_as_stage_error(what: str, hint: str) -> Generator[None]:
    """Raise StageError with this hint if memory runs out inside; then free the memory that only the inside needed."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise StageError(f"out of memory while {what}", hint=hint) from None
    finally:
        give_back()


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


def begins_adapter(store: Store, policy: Ref, config: UpdateConfig) -> bool:
    """Return whether an update makes the first adapter of a policy, with an optimiser of its own."""
    return config.lora is not None and base_ref(store, policy) is None


def base_of_next(store: Store, policy: Ref) -> Ref:
    """The whole policy below the adapter that an update makes of a policy."""
    return base_ref(store, policy) or policy


def refers_to_base(store: Store, policy: Ref, reference: Ref, config: UpdateConfig) -> bool:
    """Return whether the reference is the base of the adapter in training, and so the same model without its layers."""
    return config.lora is not None and reference == base_of_next(store, policy)


def written(files: Mapping[str, Collect], folder: Path, ranks: Ranks) -> list[FileEntry]:
    """Write files to a folder that all ranks see, each whole or not at all; return all of them, on every rank.

    A rank that cannot write takes part to the end, so that none waits for it; then all raise its error.
    """
    ranks.wait()  # rank 0 has made the folder
    writing: list[Future[FileEntry]] = []
    with ThreadPoolExecutor(max_workers=1) as writer:
        for index, (name, collect) in enumerate(files.items()):
            owner = index % ranks.num_ranks
            if owner == ranks.rank:
                wait(writing)
                # What is collected is bound to no name, so that it is freed once it is written.
                writing.append(writer.submit(_write, collect(owner), folder, name))
            else:
                collect(owner)
    return _agreed(writing, ranks)


def _write(write: Write | None, folder: Path, name: str) -> FileEntry:
    assert write is not None, f"{name} was not gathered on the rank that writes it"
    with whole_file(folder, name) as path:
        write(path)
    return entry_of(folder, name)


def _agreed(writing: list[Future[FileEntry]], ranks: Ranks) -> list[FileEntry]:
    """Return the files of all ranks, or raise the first error that one met."""
    error = next((raised for each in writing if (raised := each.exception()) is not None), None)
    words = None if error is None else in_words(error)
    said = None if words is None else (type(words).__name__, words.message, words.hint)
    files = [] if error else [each.result().model_dump() for each in writing]
    heard = ranks.gathered([said, files])
    if error is not None:
        raise error
    for name, message, hint in (failure for failure, _ in heard if failure):
        raise (error_class(name) or GradusError)(message, hint=hint)
    return [FileEntry.model_validate(entry) for _, entries in heard for entry in entries]
