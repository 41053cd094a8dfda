"""Distillation from the log-probs of a teacher's most likely tokens."""

import math
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows

_LEAST = 1e-6
"""Least mass of the tokens beyond the K most likely ones: its logarithm must stay finite."""


@component(
    "loss",
    paper="arXiv 2306.13649",
    needs=("now.top", "teacher.top"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
)
def distil(rows: Rows, *, beta: Annotated[float, Ge(0.0), Le(1.0)] = 0.0) -> tuple[Tensor, Metrics]:
    """Divergence between a teacher and the policy at each token, over the teacher's K most likely tokens and the rest.

    beta = 0: KL(teacher || policy); beta = 1: KL(policy || teacher); between: the generalised Jensen-Shannon divergence
    beta KL(T || m) + (1 - beta) KL(P || m), m = beta T + (1 - beta) P. On-policy distillation (GKD), arXiv 2306.13649,
    eq. 1 and 3. Deviation: all tokens beyond the K count as one. Metric: teacher_mass, that of the K under the teacher.

    Args:
        beta: Position between forward (0) and reverse KL (1).
    """
    teacher, policy = with_rest(rows["teacher.top"]), with_rest(rows["now.top"])
    if beta == 0.0:
        loss = _kl(teacher, policy)
    elif beta == 1.0:
        loss = _kl(policy, teacher)
    else:
        # Both probabilities may underflow, so that the mixture is made of logarithms.
        mixed = torch.logaddexp(teacher + math.log(beta), policy + math.log(1 - beta))
        loss = beta * _kl(teacher, mixed) + (1 - beta) * _kl(policy, mixed)
    return loss, {"teacher_mass": rows["teacher.top"].exp().sum(-1)}


def with_rest(logp: Tensor) -> Tensor:
    """Log-probs (M, K) with that of all other tokens together as one more, (M, K + 1)."""
    rest = (1 - logp.exp().sum(-1, keepdim=True)).clamp_min(_LEAST).log()
    return torch.cat([logp, rest], -1)


def _kl(first: Tensor, second: Tensor) -> Tensor:
    return (first.exp() * (first - second)).sum(-1)
