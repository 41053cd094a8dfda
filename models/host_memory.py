"""A training whose device is needed by others for a while: its tensors go to the host's memory and come back.

    back = to_host(model, optimizer, [average])
    ...                                             # a sampler has the device to itself
    back()                                          # the same bits

Left out: pinned memory, which copies faster and which no other process of the host can use meanwhile.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer


def to_host(model: Module, optimizer: Optimizer, others: Sequence[dict[str, Tensor]] = ()) -> Callable[[], None]:
    """Move a model, what its optimiser steps and keeps, and tables of tensors; return what moves them back."""
    device = next(model.parameters()).device
    own = set(model.parameters())
    masters = [p for group in optimizer.param_groups for p in group["params"] if p not in own]
    # A counter of steps may lie on the CPU while the rest does not: it stays there.
    tables = [*optimizer.state.values(), *others]
    kept = [(table, name) for table in tables for name, value in table.items() if _is_on(value, device)]

    def move(there: torch.device) -> None:
        model.to(there)
        for master in masters:
            master.data = master.data.to(there)
        for table, name in kept:
            table[name] = table[name].to(there)

    move(torch.device("cpu"))
    return lambda: move(device)


def _is_on(value: object, device: torch.device) -> bool:
    return isinstance(value, Tensor) and value.device == device
