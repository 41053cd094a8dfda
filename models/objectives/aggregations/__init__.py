"""Aggregations: `(loss, mask, row, totals, *, settings) -> scalar` from token losses (M,).

The totals are those of the whole optimiser step: summed over micro-batches the parts give the same number however the
step is divided.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """Counts over a whole optimiser step; only rows that carry a counted token are rows here."""

    num_tokens: int
    num_rows: int
    row_tokens: Tensor
    """(N,) counted tokens of each row."""

    @classmethod
    def of(cls, mask: Tensor, row: Tensor, num_rows: int) -> "Totals":
        """Count a step's tokens; `mask` and `row` are (M,), `num_rows` is N."""
        row_tokens = torch.zeros(num_rows, dtype=torch.long).index_add_(0, row, mask.long())
        return cls(int(mask.sum()), int((row_tokens > 0).sum()), row_tokens)


Aggregation = Callable[[Tensor, Tensor, Tensor, Totals], Tensor]
