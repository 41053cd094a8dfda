"""Weights from a second-order model of the step on each token alone, in the weights of the head: CAPO."""

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("weight", paper="arXiv 2510.00819", needs=("advantage", "now.head_gradient", "now.head_curvature"))
def capo_curvature(
    rows: Rows,
    *,
    step: Annotated[float, Gt(0.0)] = 5e-3,
    max_kl: Annotated[float, Gt(0.0)] = 0.01,
    min_gain: float = 0.0,
) -> tuple[Tensor, Metrics]:
    """CAPO: weigh tokens 0 of which a step on the head alone would change the policy too much or lower the objective.

    For J = A log pi and d = step grad J: m_obj = step A^2 G - step^2 A^3 C / 2, m_kl = step^2 A^2 C / 2, with G the
    squared norm of grad log pi in the weights of the head, and C = grad log pi' F grad log pi, F the Fisher information
    (exact: the Hessian of log pi is -F there). Kept are tokens of m_kl <= max_kl and m_obj >= min_gain; all others
    weigh 0. Curvature-Aware Policy Optimization, arXiv 2510.00819. Guessed: subsets are single tokens, the step is a
    plain gradient step, and all three settings. Metrics: curved_frac, the tokens left out; head_kl_mean, m_kl.

    Args:
        step: Size of the step on a token; it suits hidden states of one size, and `curved_frac` says whether it does:
            the paper leaves out fewer than 8 % of the tokens.
        max_kl: Largest KL divergence from the policy before the step that is taken, nats.
        min_gain: Smallest change of the objective that is taken.
    """
    advantage, gradient, curvature = (
        rows[name].double() for name in ("advantage", "now.head_gradient", "now.head_curvature")
    )
    shift = 0.5 * step**2 * advantage**2 * curvature
    gain = step * advantage**2 * gradient - advantage * shift
    kept = ((shift <= max_kl) & (gain >= min_gain)).float()
    return kept, {"curved_frac": 1 - kept, "head_kl_mean": torch.where(rows.mask, shift, 0.0).float()}
