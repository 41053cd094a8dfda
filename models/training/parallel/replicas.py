"""Parameters that every rank has whole: the matrices of an adapter, beside a base that is divided.

Each rank has their gradients of its own packs; summed, they are those of the whole step, and all ranks take the same
step with them.
"""

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from gradus.models.training.parallel.ranks import Ranks


def sum_gradients(ranks: Ranks, parameters: Iterable[Parameter]) -> None:
    """Sum the gradients of parameters over ranks in place, in one exchange; those that FSDP2 divides are summed by it.

    A parameter that no rank has a gradient of is left without one.
    """
    own = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
    if ranks.num_ranks == 1 or not own:
        return
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in own]
    num_found = gradients[0].new_tensor([each.grad is not None for each in own])
    *summed, num_found = ranks.summed(torch.cat([*(each.flatten() for each in gradients), num_found])).split(
        [*(each.numel() for each in own), len(own)]
    )
    for parameter, gradient, found in zip(own, summed, num_found.tolist(), strict=True):
        parameter.grad = gradient.view_as(parameter) if found else None
