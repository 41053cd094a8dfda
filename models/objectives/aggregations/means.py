"""Means over tokens, over completions, and over a fixed length."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component("aggregation", paper="arXiv 2503.14476", needs=(), mean_over="token")
def token_mean(rows: Rows) -> Tensor:
    """Every token of the step weighs the same (DAPO, arXiv 2503.14476): 1 / number of tokens."""
    return torch.full(rows.row.shape, 1.0) / max(1, int(rows.mask.sum()))


@component("aggregation", paper="arXiv 2402.03300", needs=(), mean_over="row")
def sequence_mean(rows: Rows) -> Tensor:
    """Every completion weighs the same (GRPO, arXiv 2402.03300): mean over rows of the mean over their tokens."""
    weight = 1.0 / rows.row_tokens.clamp_min(1).float()
    return (torch.full((), 1.0) / max(1, _num_rows(rows))) * weight[rows.row]


@component("aggregation", paper="arXiv 2503.20783", needs=(), mean_over="token")
def fixed_length(rows: Rows, *, length_tokens: Annotated[int, Ge(1)]) -> Tensor:
    """Every token weighs 1 / (rows * limit), so that length earns nothing (Dr. GRPO, arXiv 2503.20783).

    The limit is a constant of the run: one read off the batch would bring back the dependence on length.

    Args:
        length_tokens: Completion limit to divide by: the max_tokens that the rollouts were sampled with.
    """
    return torch.full(rows.row.shape, 1.0) / max(1, _num_rows(rows) * length_tokens)


def _num_rows(rows: Rows) -> int:
    """Return the number of rows that have a token that counts."""
    return int((rows.row_tokens > 0).sum())
