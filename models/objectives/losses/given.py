"""Losses of texts that were given, not sampled: worked solutions, traces of a stronger model."""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
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
