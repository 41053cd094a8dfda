"""A policy of the lake in memory: its files checked, on the device that the settings name."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.store import Ref, Store
from gradus.models.devices import Device, DeviceError, give_back, is_out_of_memory, resolve_device
from gradus.models.policy import Dtype, Policy, PolicyError, Quantize, load_policy
from gradus.models.policy_files import WHOLE
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.parallel.sharding import shard
from gradus.tasks.artifacts.policies import verify_policy

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
