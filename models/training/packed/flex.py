"""Exact attention over sequences end to end on a GPU: torch's flex_attention with the block structure of a pack.

Tokens are laid out in preorder (trees, beside this file), so the tokens that see a token are one interval that begins
with it. A block of keys is computed against a block of queries if an interval of the former reaches the latter, and
without a mask if all of them cover it: both follow from the least and largest end of the block's intervals, so that no
mask of tokens x tokens is ever made. arXiv 2412.05496 (FlexAttention).
Left out: sliding windows, caps of scores, sinks (refused); a CPU, for which torch has no backward of it
(block_attention, beside this file).
Shapes: T tokens end to end, B blocks of BLOCK tokens, H heads, K key heads, D head size.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
"""Tokens of a block; T is padded to a multiple."""


class Visible:
    """Attention mask: token t is seen by the tokens t .. ends[t] - 1; `ends` is (B * BLOCK,) int64."""

    def __init__(self, ends: Tensor) -> None:
        by_block = ends.view(-1, BLOCK)
        first = torch.arange(0, len(ends), BLOCK, device=ends.device)
        below = first[:, None] > first[None, :]
        reached = (below & (by_block.amax(1)[None, :] > first[:, None])) | torch.eye(
            len(first), dtype=torch.bool, device=ends.device
        )
        covered = below & (by_block.amin(1)[None, :] >= first[:, None] + BLOCK)

        def mask_mod(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        partly, wholly = _listed(reached & ~covered), _listed(covered)
        self.mask = BlockMask.from_kv_blocks(*partly, *wholly, BLOCK_SIZE=BLOCK, mask_mod=mask_mod)
        self.layers = set[int]()
        """The layers that have attended by it."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Return what the tokens attend to, (1, H, T, D) -> (1, T, H, D)."""
        grouped = query.shape[1] != key.shape[1]
        found = _kernel(query.device.type)(query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=grouped)
        return found.transpose(1, 2)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks of each query block are chosen of (B, B), (1, 1, B), and which, these first."""
    indices = torch.argsort(chosen.int(), dim=1, descending=True, stable=True).int()
    return chosen.sum(1, dtype=torch.int32)[None, None], indices[None, None]


def padded_ends(ends: Tensor) -> Tensor:
    """Return `ends` (T,) lengthened to whole blocks by tokens that only themselves see."""
    total = -(-len(ends) // BLOCK) * BLOCK
    return torch.cat([ends, torch.arange(len(ends), total) + 1])


@cache
def _kernel(device: str) -> Callable[..., Tensor]:
    """The fused kernel; on a CPU, where nothing but tests comes here, the same in torch's own operations."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=True)
