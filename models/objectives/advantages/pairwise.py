"""Preference objectives on the pairs of a group, as coefficients of the policy's log-probs: DPO."""

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component(
    "advantage",
    paper="arXiv 2305.18290",
    needs=("reward", "group", "now.logp", "reference.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
    compares_group=True,
)
def dpo(rows: Rows, *, beta: Annotated[float, Gt(0.0)] = 0.1) -> Tensor:
    """DPO on pairs of a group: coefficients of log pi in the gradient of the preference loss, one a row, (N,).

    L = -mean over pairs (w, l) of log sigmoid(beta (h_w - h_l)), h_i = sum_t (log pi - log pi_ref), over every two rows
    of a group of which w has the higher reward. Direct Preference Optimization, arXiv 2305.18290, eq. 7.
    Returned is A with -grad L = (1 / N) sum_i (1 / |o_i|) sum_t A_i grad log pi_t, so that the loss `reinforce` with
    the aggregation `sequence_mean` takes the step. Deviation: pairs come from the step's rollouts, not from a data set.

    Args:
        beta: Strength of the pull to the reference.
    """
    h = rows.row_sum((rows["now.logp"] - rows["reference.logp"]).double())
    group, reward = rows.by("group").of, rows["reward"]
    won, lost = torch.nonzero((group[:, None] == group) & (reward[:, None] > reward), as_tuple=True)
    pull = beta * torch.sigmoid(-beta * (h[won] - h[lost])) / max(1, len(won))
    coefficient = torch.zeros_like(h).index_add_(0, won, pull).index_add_(0, lost, -pull)
    return coefficient * rows.row_tokens * float((rows.row_tokens > 0).sum())
