"""The processes that take the steps of an update together, and their exchanges beside gradients.

    ranks = Ranks(rank=0, num_ranks=2)      # within torch.distributed's process group
    ranks.summed(values)                    # the sum over all ranks, on every rank

One process alone exchanges nothing, so that the same code serves both. Nothing is pickled: tensors and bytes alone.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh


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

    def gathered(self, content: bytes) -> list[bytes]:
        """Return the bytes of every rank, in the order of ranks; they may differ in length."""
        if self.num_ranks == 1:
            return [content]
        own = torch.tensor([len(content)])
        sizes = [torch.empty_like(own) for _ in range(self.num_ranks)]
        distributed.all_gather(sizes, own)
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(content.ljust(longest, b"\0") or b"\0"), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


ALONE = Ranks()
"""One process, as an update without `launch` has it."""
