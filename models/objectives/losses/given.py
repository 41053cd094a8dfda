"""Losses of texts that were given, not sampled: worked solutions, traces of a stronger model."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.rows import Rows


@component("loss", needs=("now.logp",), takes=(), acts_without_advantage=True, needs_sampler=False)
def sft(rows: Rows) -> tuple[Tensor, Metrics]:
    """Supervised fine-tuning: L_t = -log pi_t, whatever the advantage."""
    return -rows["now.logp"], {}


@component("loss", paper="arXiv 2504.14945", needs=("now.logp", "advantage"), needs_sampler=False)
def luffy(rows: Rows, *, gamma: Annotated[float, Gt(0.0)] = 0.1) -> tuple[Tensor, Metrics]:
    """LUFFY's shaped loss of off-policy tokens: L_t = -A_t f(pi_t), f(p) = p / (p + gamma), without ratio and clip.

    Learning to Reason under Off-Policy Guidance, arXiv 2504.14945, section 3.2: the behaviour's probability is taken
    to be 1, and f raises the gradient of tokens that are unlikely under the policy. The advantage is that of a group
    of given and sampled rows together. Metric: shaping_mean, the mean of f.

    Args:
        gamma: Probability at which f is one half.
    """
    probability = rows["now.logp"].exp()
    shaped = probability / (probability + gamma)
    return -rows["advantage"] * shaped, {"shaping_mean": shaped.detach()}


@component("loss", paper="YihongDong/RL-PLUS", needs=("now.logp", "old.logp", "advantage"), needs_sampler=False)
def rl_plus(rows: Rows, *, gamma: Annotated[float, Ge(0.0)] = 0.5) -> tuple[Tensor, Metrics]:
    """RL-PLUS's loss of external tokens: L_t = -w_t A_t (1 - sg(pi_t))^gamma, w_t = 2 pi_t / (pi_old + omega).

    Multiple importance sampling with the behaviour's probability omega = (pi_old + 1) / 2, so that no weight explodes;
    the last factor enlarges the advantage of tokens that the policy does not expect. As in the authors' code
    (rlplus_core_alg.py), without a clip. Metric: mixture_mean, the mean of w.

    Args:
        gamma: Exponent of the probability that the token is not expected.
    """
    probability, before = rows["now.logp"].exp(), rows["old.logp"].exp()
    weight = 2 * probability / (before + (before + 1) / 2)
    unexpected = (1 - probability.detach()).clamp_min(0.0) ** gamma
    return -weight * rows["advantage"] * unexpected, {"mixture_mean": weight.detach()}


@component("loss", paper="MiliLab/REX-RAG", needs=("now.logp", "old.logp", "advantage"), needs_sampler=False)
def mixture(
    rows: Rows,
    *,
    share: Annotated[float, Gt(0.0), Le(1.0)] = 0.125,
    clip_low: Annotated[float, Ge(0.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.28,
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate (see `clip`) on rho_t = pi_t / mu_t, mu = (1 - share) pi_old + share (REX-RAG's ratio).

    REX-RAG: rows of several sources are weighed by the mixture that they come from; a given text is certain to its
    source, whose probability is 1. Form and share are a guess.

    Args:
        share: Share of the rows of a group that are of this source.
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high.
    """
    mixed = torch.log((1 - share) * rows["old.logp"].exp() + share)
    of_tokens = {"now.logp": rows["now.logp"], "old.logp": mixed, "advantage": rows["advantage"]}
    return clip(rows.adding(of_tokens=of_tokens), clip_low=clip_low, clip_high=clip_high)
