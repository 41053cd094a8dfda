"""A policy of the lake in memory: its files checked, on the device that the settings name."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from data.errors import BadInputError, StageError
from data.store import Ref, Store
from models.devices import Device, DeviceError, device_of, give_back, is_out_of_memory
from models.policy import Dtype, Policy, PolicyError, load_policy
from tasks.policies import verify_policy

ROOM = "free memory where it computes, or set device to cpu"


def warm_key(digest: str, dtype: Dtype, device: Device) -> str:
    """Under which a worker keeps a policy loaded."""
    return f"policy/{digest}/{dtype}/{device}"


def place(device: Device) -> torch.device:
    """The device that a setting means; BadInputError where there is none."""
    try:
        return device_of(device)
    except DeviceError as error:
        raise BadInputError(str(error), hint="set device to auto, or install PyTorch for your GPU") from None


def loaded_policy(store: Store, ref: Ref, dtype: Dtype, device: Device) -> Policy:
    """A policy of the lake; BadInputError where it cannot be used, or not on that device."""
    verify_policy(store, ref)
    try:
        with memory_for("loading the policy", ROOM):
            policy = load_policy(store.path(ref), dtype, place(device))
        _ = policy.end_tokens
    except PolicyError as error:
        raise BadInputError(str(error), hint="give a folder that transformers can load") from None
    return policy


@contextmanager
def memory_for(what: str, hint: str) -> Generator[None]:
    """StageError with this hint where memory runs out inside; what only the inside needed is given back after it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise StageError(f"out of memory while {what}", hint=hint) from None
    finally:
        give_back()
