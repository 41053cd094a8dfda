"""Advantages from a critic's values: GAE."""

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.returns import gae_advantages
from gradus.models.objectives.rows import Rows

_EPS = 1e-8


@component("advantage", paper="arXiv 1506.02438", needs=("reward", "critic.value"), per="token", when="step")
def gae(
    rows: Rows,
    *,
    gamma: Annotated[float, Ge(0.0), Le(1.0)] = 1.0,
    lam: Annotated[float, Ge(0.0), Le(1.0)] = 1.0,
    whiten: bool = True,
) -> Tensor:
    """GAE from a critic's values, one advantage a token, (M,).

    Schulman et al., arXiv 1506.02438; gamma = lam = 1, reward less value, as in Open-Reasoner-Zero, arXiv 2503.24290.
    The critic is a model of its own (settings of update.critic), trained in the same steps.

    Args:
        gamma: Discount of a later reward, a token.
        lam: 1 trusts the reward, 0 the next value.
        whiten: True if advantages are shifted and scaled to mean 0 and standard deviation 1 over the step's tokens
            (ddof 1, eps 1e-8 in the variance, as in verl).
    """
    advantage = gae_advantages(rows, gamma=gamma, lam=lam)
    if not whiten or int(rows.mask.sum()) < 2:
        return advantage
    counted = advantage[rows.mask]
    scaled = (advantage - counted.mean()) * torch.rsqrt(counted.var() + _EPS)
    return torch.where(rows.mask, scaled, 0.0)
