"""Sums over completions, means over prompts, and weights that fall with the length of a completion."""

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component("aggregation", paper="arXiv 2602.05261", needs=(), mean_over="token")
def sequence_sum(rows: Rows) -> Tensor:
    """Mean over completions of the sum over their tokens: 1 / rows for every token (verl's seq-mean-token-sum).

    With `gspo_token` it is LUSPO (arXiv 2602.05261), which multiplies the loss of a completion by its length.
    """
    return torch.full(rows.row.shape, 1.0) / max(1, int((rows.row_tokens > 0).sum()))


@component("aggregation", paper="arXiv 2510.13786", needs=("group",), mean_over="token")
def prompt_mean(rows: Rows) -> Tensor:
    """Every prompt weighs the same: mean over groups of the mean over all tokens of a group.

    The Art of Scaling Reinforcement Learning Compute (ScaleRL), arXiv 2510.13786, prompt-level averaging. Groups
    without a token that counts are not among them.
    """
    groups = rows.by("group")
    filled = rows.row_tokens > 0
    num = max(1, len(groups.of[filled].unique()))
    tokens = groups.sum(rows.row_tokens)
    return (1.0 / (num * tokens.clamp_min(1.0))).float()[rows.row]


@component("aggregation", paper="arXiv 2509.07558", needs=(), mean_over="token")
def delta_l(
    rows: Rows, *, alpha: Annotated[float, Ge(0.0), Le(1.0)] = 0.75, length_tokens: Annotated[int, Ge(1)] = 1
) -> Tensor:
    """Each token weighs L_i^-alpha / sum_j L_j^-alpha / M, L the counted tokens of its completion.

    Delta L Normalization, arXiv 2509.07558: since the variance of a completion's gradient grows with its length, these
    are the weights of least variance (alpha = 1) among those whose sum is a constant 1 / M, which makes the estimate
    unbiased up to that factor; alpha = 0 is `fixed_length`. The sum is over the completions of the step. The authors
    take alpha = 1 for CountDown and 0.75 for mathematics.

    Args:
        alpha: Exponent of the length.
        length_tokens: M, a constant such as the completion limit.
    """
    filled = rows.row_tokens > 0
    weight = torch.where(filled, rows.row_tokens.clamp_min(1).double() ** -alpha, 0.0)
    return (weight / weight.sum().clamp_min(torch.finfo(torch.float64).tiny) / length_tokens).float()[rows.row]
