"""Losses that read the policy's log-ratios as values of tokens: ROVER."""

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2509.24981",
    needs=("now.logp", "now.mean_logp", "reference.logp", "reference.mean_logp", "advantage"),
    acts_without_advantage=True,
    needs_sampler=False,
)
def rover(rows: Rows, *, rho: Annotated[float, Gt(0.0)] = 1.0) -> tuple[Tensor, Metrics]:
    """ROVER: L_t = (Q_t - sg(A_t + V_{t+1}))^2, Q_t = rho (log pi_t - log pi_ref,t), V_t = rho mean_v of the same at t.

    Random Policy Valuation, arXiv 2509.24981: the value of a token under the uniform policy is the centred reward
    (advantage `dr_grpo`) and the mean value of the next token over the vocabulary; behind the last token it is 0.
    The paper's reference is the policy that sampled: renew it in every round, `reference = { renew_every = 1 }`. Until
    the first step of an update all values are 0, and the gradient is that of REINFORCE with 2 rho A. Metric: value_abs.

    Args:
        rho: Scale of the values.
    """
    following = (rows["now.mean_logp"] - rows["reference.mean_logp"]).detach().roll(-1)
    following[rows.lengths.cumsum(0)[rows.lengths > 0] - 1] = 0.0
    found = rho * (rows["now.logp"] - rows["reference.logp"])
    return (found - torch.add(rows["advantage"], following, alpha=rho)).square(), {"value_abs": found.detach().abs()}
