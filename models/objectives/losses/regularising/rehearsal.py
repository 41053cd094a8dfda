"""Divergences between the policy and the one that sampled its rows, from their log-probs alone."""

from typing import Literal

import torch
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics, k3_divergence
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2509.07430",
    needs=("now.logp", "sampler.logp"),
    takes=(),
    acts_without_advantage=True,
    regulariser=True,
)
def dph(rows: Rows, *, divergence: Literal["forward", "js"] = "forward") -> tuple[Tensor, Metrics]:
    """Pull to the sampler of the rows: L_t = f(u), u = pi_t / pi_sampler,t, an estimate of D_f on its own samples.

    DPH-RL, arXiv 2509.07430, by its released code: forward KL(sampler || policy) f(u) = u - log u - 1, or the
    generator of the Jensen-Shannon divergence f(u) = u log u - (u + 1) log((u + 1) / 2). Both keep mass where the
    sampler has it. No model beside the policy is asked. Deviation: log u is cut at MAX_LOG_RATIO.

    Args:
        divergence: forward KL, or js.
    """
    now, sampler = rows["now.logp"], rows["sampler.logp"]
    if divergence == "forward":
        return k3_divergence(sampler, now), {}
    log = (now - sampler).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log.exp()
    return ratio * log - (ratio + 1) * torch.log((ratio + 1) / 2), {}
