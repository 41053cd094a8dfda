"""Preferences within a group, as coefficients of the policy's log-probs: TRPA, and given answers over the policy's own.

Both return A with -grad L = (1 / N) sum_i (1 / |o_i|) sum_t A_t grad log pi_t, so that the loss `reinforce` with the
aggregation `sequence_mean` takes the step. `dpo` has the preference of rewards.
"""

from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO
from gradus.models.objectives.rows import Rows


@component(
    "advantage",
    paper="arXiv 2504.04524",
    needs=("reward", "group", "now.logp", "old.logp", "reference.logp"),
    per="token",
    when="step",
    returns=("coefficient",),
    mean_over="row",
)
def trpa(
    rows: Rows,
    *,
    beta: Annotated[float, Gt(0.0)] = 1.0,
    anisotropy: Annotated[float, Gt(0.0)] = 2.5,
    best: float = 1.0,
    kl_coef: Annotated[float, Ge(0.0)] = 0.001,
) -> Tensor:
    """TRPA: coefficients of log pi in the gradient of a preference loss in a trust region, one a token, (M,).

    L = -mean over pairs (w, l) of log sigmoid(b (h_w - h_l)) + kl_coef mean_t k3_t, h_i = mean_t (log pi - log pi_ref),
    k3 the estimate of KL(pi || pi_old). A pair is any two rows of a group of different rewards; b = anisotropy beta if
    the winner's reward is at least `best`, else beta. In a step without a pair
    L = -mean_i log sigmoid(h_i), for rows whose reward is below `best` with the sign of h turned. Trust Region
    Preference Approximation, arXiv 2504.04524, by its code. Deviations: levels are the rewards; beta and kl_coef are
    ours; |log ratio| of the KL is cut at MAX_LOG_RATIO.

    Args:
        beta: Strength of the preference.
        anisotropy: Factor of beta for the pairs whose winner is among the best.
        best: Least reward of the best level.
        kl_coef: Weight of the KL to the policy that the update began with.
    """
    h, reward = rows.row_mean((rows["now.logp"] - rows["reference.logp"]).double()), rows["reward"]
    won, lost = _pairs(rows, reward[:, None] > reward)
    if len(won):
        scale = torch.where(reward[won] >= best, anisotropy * beta, beta)
        pull = scale * torch.sigmoid(-scale * (h[won] - h[lost])) / len(won)
        slope = torch.zeros_like(h).index_add_(0, won, pull).index_add_(0, lost, -pull)
    else:
        sign = torch.where(reward >= best, 1.0, -1.0)
        judged = ~reward.isnan() & (rows.row_tokens > 0)
        slope = torch.where(judged, sign * torch.sigmoid(-sign * h), 0.0) / max(1, int(judged.sum()))
    counts = rows.row_tokens.double()
    num_rows = float((counts > 0).sum())
    back = (rows["old.logp"] - rows["now.logp"]).double().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() - 1
    trust = kl_coef * back * num_rows * counts[rows.row] / max(1.0, float(counts.sum()))
    return num_rows * slope[rows.row] + trust


@component(
    "advantage",
    paper="arXiv 2401.01335",
    needs=("origin", "group", "now.logp", "reference.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
)
def given_first(rows: Rows, *, beta: Annotated[float, Gt(0.0)] = 0.1) -> Tensor:
    """Prefer the given rows of a group to the policy's own: coefficients of log pi in the loss of DPO, one a row, (N,).

    L = -mean over pairs (g, o) of log sigmoid(beta (h_g - h_o)), h_i = sum_t (log pi - log pi_ref), g any row of the
    group of another origin than own, o any of its own. SPIN, arXiv 2401.01335, and the implicit reward of
    StepAgent for answers of one step; see `dpo`.

    Args:
        beta: Strength of the pull to the reference.
    """
    h = rows.row_sum((rows["now.logp"] - rows["reference.logp"]).double())
    own = rows.having(origin="own")
    first, second = _pairs(rows, ~own[:, None] & own)
    pull = beta * torch.sigmoid(-beta * (h[first] - h[second])) / max(1, len(first))
    slope = torch.zeros_like(h).index_add_(0, first, pull).index_add_(0, second, -pull)
    return slope * rows.row_tokens * float((rows.row_tokens > 0).sum())


def _pairs(rows: Rows, preferred: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (i, j) of a group of which i is preferred to j, by (N, N) bool, both with tokens."""
    group, filled = rows.by("group").of, rows.row_tokens > 0
    there = (group[:, None] == group) & filled[:, None] & filled
    first, second = torch.nonzero(there & preferred, as_tuple=True)
    return first, second
