"""A model whose parameters are divided among ranks by FSDP2: each holds its part and gathers a layer while it computes.

PyTorch FSDP (arXiv 2304.11277), parameter by parameter (`fully_shard`). Two things are set that are not its defaults:
gradients are summed over ranks, since the denominators of a loss are those of the whole step; and the root lets go of
its gathered parameters after each forward pass, too: after one without gradient nothing else would make it do so, and
the next pass would compute with embeddings from before the optimiser's step.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from gradus.models.training.recomputation import layers_of


def mesh_of(num_ranks: int, device: torch.device) -> DeviceMesh | None:
    """Return the ranks as a row of devices of this kind; None for one process alone, which holds whole models."""
    return None if num_ranks == 1 else init_device_mesh(device.type, (num_ranks,))


def shard(
    model: PreTrainedModel, mesh: DeviceMesh, compute_dtype: torch.dtype, undivided: Iterable[Parameter] = ()
) -> None:
    """Divide a model's parameters in place, layer by layer and the rest, and move them to the mesh's device.

    The model computes in `compute_dtype`; its parameters keep theirs, and gradients are summed over ranks in float32.
    Every rank has those of `undivided` whole, as they are; their gradients are summed by `sum_gradients`.
    """
    kept = set(undivided)
    # Inputs are left alone: to cast them FSDP2 copies what layers are called with, and a pack's attention counts in it
    # which layers have attended.
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in (*layers_of(model), model):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=policy, ignored_params=kept)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    for parameter in kept:
        parameter.data = parameter.data.to(model.device)


def divided(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of this rank's part of a whole tensor, on the device of `like` and divided as that one is."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device, copy=True)
    part = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return part.clone()  # on its own, not as a view that would keep the whole


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors, divided alike, have the same numbers on this rank."""
    return torch.equal(*(each.to_local() if isinstance(each, DTensor) else each for each in (one, other)))


def whole(tensor: Tensor) -> Tensor:
    """Return a divided tensor as a whole, which all ranks must ask for together; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
