"""Means over tokens, over completions, and over a fixed length."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.aggregations import Totals


@component("aggregation", paper="arXiv 2503.14476")
def token_mean(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:  # noqa: ARG001
    """Every token of the step weighs the same (DAPO, arXiv 2503.14476): sum / number of tokens."""
    return torch.where(mask, loss, 0.0).sum() / max(1, totals.num_tokens)


@component("aggregation", paper="arXiv 2402.03300")
def sequence_mean(loss: Tensor, mask: Tensor, row: Tensor, totals: Totals) -> Tensor:
    """Every completion weighs the same (GRPO, arXiv 2402.03300): mean over rows of the mean over their tokens."""
    weight = 1.0 / totals.row_tokens.clamp_min(1).to(loss.dtype)
    return torch.where(mask, loss * weight[row], 0.0).sum() / max(1, totals.num_rows)


@component("aggregation", paper="arXiv 2503.20783")
def fixed_length(
    loss: Tensor,
    mask: Tensor,
    row: Tensor,  # noqa: ARG001 - of every aggregation
    totals: Totals,
    *,
    length_tokens: Annotated[int, Ge(1)],
) -> Tensor:
    """Every token weighs 1 / (rows * limit), so that length earns nothing (Dr. GRPO, arXiv 2503.20783).

    The limit is a constant of the run: one read off the batch would bring back the dependence on length.

    Args:
        loss: Token losses (M,).
        mask: Tokens that count (M,).
        row: The completion of each token (M,).
        totals: Counts of the whole step.
        length_tokens: Completion limit to divide by: the max_tokens that the rollouts were sampled with.
    """
    return torch.where(mask, loss, 0.0).sum() / max(1, totals.num_rows * length_tokens)
