"""A divided tensor brought together on one rank alone, so that ranks write different files at the same time."""

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, Shard


def gathered(tensor: Tensor, owner: int) -> Tensor | None:
    """Return a divided tensor as a whole on rank `owner`, None on the others; all ranks ask for it together.

    A tensor that is not divided is returned as it is, on every rank.
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
