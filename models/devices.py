"""Device of a policy: the accelerator of this machine, if it has one, or its CPU.

    model.to(resolve_device("auto"))

Left out: several accelerators (vLLM spreads over them; the update does not), and those without float64, which drawing
a token needs (Apple's).
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

Device = Literal["auto", "cpu", "cuda"]
"""`cuda` is AMD's too, by PyTorch's own naming."""


class DeviceError(RuntimeError):
    """A device that this machine, or this build of PyTorch, does not have."""


def resolve_device(wanted: Device) -> torch.device:
    """The device meant by a setting; `auto` takes a GPU where PyTorch sees one. DeviceError if there is none."""
    seen = torch.cuda.is_available()
    if wanted == "cuda" and not seen:
        raise DeviceError(f"the setting device = cuda needs a GPU, and PyTorch {torch.__version__} sees none here")
    return torch.device("cuda" if seen and wanted != "cpu" else "cpu")


def give_back() -> None:
    """Return memory that PyTorch keeps for its next use to the GPU, which other processes may share."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, the accelerator's or the machine's."""
    # PyTorch's allocator on a CPU raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def to_host(model: Module, optimizer: Optimizer, others: Sequence[dict[str, Tensor]] = ()) -> Callable[[], None]:
    """Move a model, what its optimiser steps and keeps, and tables of tensors; return what moves them back, bit by bit.

    Left out: pinned memory, which copies faster and which no other process of the host can use meanwhile.
    """
    device = next(model.parameters()).device
    own = set(model.parameters())
    masters = [p for group in optimizer.param_groups for p in group["params"] if p not in own]
    # A counter of steps may lie on the CPU while the rest does not: it stays there.
    tables = [*optimizer.state.values(), *others]
    kept = [
        (table, name)
        for table in tables
        for name, value in table.items()
        if isinstance(value, Tensor) and value.device == device
    ]

    def move(there: torch.device) -> None:
        model.to(there)
        for master in masters:
            master.data = master.data.to(there)
        for table, name in kept:
            table[name] = table[name].to(there)

    move(torch.device("cpu"))
    return lambda: move(device)
