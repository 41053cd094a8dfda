"""One update on several processes: their exchanges, and a model whose parameters are divided among them by FSDP2.

    ranks = Ranks(rank=0, num_ranks=2)      # within torch.distributed's process group
    ranks.summed(values)                    # the sum over all ranks, on every rank

One process alone exchanges nothing, so that the same code serves both. Nothing is pickled: tensors and JSON alone.

Each rank holds its part of the parameters and gathers a layer while it computes: PyTorch FSDP (arXiv 2304.11277),
parameter by parameter (`fully_shard`). Two things are set that are not its defaults: gradients are summed over ranks,
since the denominators of a loss are those of the whole step; and the root releases its gathered parameters after each
forward pass, too: after one without gradient nothing else would make it do so, and the next pass would compute with
embeddings from before the optimiser's step.
"""

import json
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

from gradus.models.training.recomputation import layers_of


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of an update."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    """Its place among the `num_local` of its host."""
    num_local: int = 1
    mesh: DeviceMesh | None = None
    """The devices of all ranks in a row, among which models are divided; None for one process, which holds them whole.
    """

    @property
    def writes(self) -> bool:
        """Return whether this process is the one that reports and writes shared files."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until every rank has reached this call."""
        self.summed(torch.zeros(1))

    @contextmanager
    def in_turns(self) -> Generator[None]:
        """Run the block on one rank of a host at a time, so that its memory is needed once a host."""
        for _ in range(self.local_rank):
            self.wait()
        yield
        for _ in range(self.num_local - self.local_rank):
            self.wait()

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of a tensor whose shape is the same on each."""
        if self.num_ranks == 1:
            return values
        found = values.contiguous().clone()
        distributed.all_reduce(found)
        return found

    def gathered(self, value: Any) -> list[Any]:
        """Return what every rank has, in the order of ranks: values of JSON, which may differ in length."""
        if self.num_ranks == 1:
            return [value]
        content = json.dumps(value).encode()
        longest = torch.tensor([len(content)])
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        padded = torch.frombuffer(bytearray(content.ljust(int(longest))), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in range(self.num_ranks)]
        distributed.all_gather(parts, padded)
        return [json.loads(part.numpy().tobytes()) for part in parts]  # JSON may end in spaces


ALONE = Ranks()
"""One process, as an update without `launch` has it."""


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
    for part in (*layers_of(model), model):
        shard_module(part, mesh, compute_dtype, kept)
    for parameter in kept:
        parameter.data = parameter.data.to(model.device)


def shard_module(
    module: Module, mesh: DeviceMesh, compute_dtype: torch.dtype, undivided: Collection[Parameter] = ()
) -> None:
    """Divide in place the parameters of a module that no module within it has divided; its call gathers them."""
    # Inputs are left alone: to cast them FSDP2 copies what layers are called with, and a pack's attention counts in it
    # which layers have attended.
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy, ignored_params=set(undivided))
    if isinstance(module, FSDPModule):  # it has become one
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def divided(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of this rank's part of a whole tensor, on the device of `like` and divided as that one is."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device, copy=True)
    part = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return part.clone()  # on its own, not as a view that would keep the whole


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors, divided alike, have the same numbers on this rank."""
    return torch.equal(*(each.to_local() if isinstance(each, DTensor) else each for each in (one, other)))


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> float:
    """Scale gradients down in place so that their norm is at most `max_norm`; return the norm before, on every rank."""
    given = list(parameters)
    total = whole(torch.nn.utils.get_total_norm([each.grad for each in given if each.grad is not None]))
    torch.nn.utils.clip_grads_with_norm_(given, max_norm, total)
    return float(total)


def whole(tensor: Tensor) -> Tensor:
    """Return a divided tensor as a whole, which all ranks must ask for together; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensor: Tensor, owner: int) -> Tensor | None:
    """Return a divided tensor as a whole on rank `owner`, None on the others; all ranks ask for it together.

    A tensor that is not divided is returned as it is, on every rank. So ranks write different files at the same time.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, local = tensor.device_mesh, tensor.to_local()
    if tensor.placements != (Shard(0),):
        raise AssertionError(f"a tensor is placed as {tensor.placements}, which FSDP2 does not do")
    rows, num_ranks = tensor.shape[0], mesh.size()
    most = -(-rows // num_ranks)
    own = local.contiguous()
    if len(own) < most:  # of the last ranks; all have to send as much
        own = torch.cat([own, own.new_empty((most - len(own), *own.shape[1:]))])
    if mesh.get_local_rank() != owner:
        distributed.gather(own, None, group=mesh.get_group(), group_dst=owner)
        return None
    whole = own.new_empty((num_ranks * most, *own.shape[1:]))
    distributed.gather(own, list(whole.split(most)), group=mesh.get_group(), group_dst=owner)
    return whole[:rows]


def sum_gradients(ranks: Ranks, parameters: Iterable[Parameter]) -> None:
    """Sum the gradients of parameters over ranks in place, in one exchange; those that FSDP2 divides are summed by it.

    Every rank has the others whole, such as the matrices of an adapter beside a base that is divided, and gradients of
    its own packs; summed, they are those of the whole step, and all ranks take the same step with them.
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
