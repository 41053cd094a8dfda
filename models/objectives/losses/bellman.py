"""Losses that read the policy's logits as values: TBRM."""

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.batch import TokenBatch
from gradus.models.objectives.losses import Metrics


@component(
    "loss",
    paper="arXiv 2505.15311",
    needs=("reference", "logsumexp"),
    acts_without_advantage=True,
    needs_sampler=False,
    goes_with={"advantage": "reward", "aggregation": "sequence_mean"},
)
def tbrm(batch: TokenBatch, *, beta: Annotated[float, Gt(0.0)] = 0.002) -> tuple[Tensor, Metrics]:
    """Trajectory Bellman residual: L = (V(s_1) + sum_t [log pi_t - log pi_ref,t] - R / beta)^2, V = logsumexp(logits).

    Trajectory Bellman Residual Minimization, arXiv 2505.15311. Every token carries the residual of its row, so the
    aggregation is `sequence_mean`, and R is the token's advantage: the advantage `reward`. Metric: bellman_residual.

    Args:
        batch: Tokens of whole rows.
        beta: Strength of the KL regularisation that the Bellman equation is of.
    """
    if batch.logp_ref is None or batch.logsumexp is None:
        raise ValueError("tbrm needs a reference and logsumexp")
    rows, row = torch.unique(batch.row, return_inverse=True)
    log_ratio = torch.where(batch.mask, batch.logp - batch.logp_ref, 0.0)
    sums = log_ratio.new_zeros(len(rows)).index_add(0, row, log_ratio)
    first = torch.full((len(rows),), len(row)).scatter_reduce(0, row, torch.arange(len(row)), "amin")
    residual = batch.logsumexp[first] + sums - batch.advantage[first] / beta
    return residual.square()[row], {"bellman_residual": residual.detach()[row]}
