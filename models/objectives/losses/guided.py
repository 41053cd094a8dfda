"""Losses of rows that were sampled after another prompt than the one that they are trained for."""

from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 2506.13923", needs=("now.logp", "sampler.logp", "advantage"))
def guided(
    rows: Rows, *, clip_low: Annotated[float, Ge(0.0)] = 0.2, clip_high: Annotated[float, Ge(0.0)] = 0.28
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate (see `clip`) on rho_t = pi(o_t | q) / pi_old(o_t | q, g), with what the sampler recorded.

    Guide-GRPO (arXiv 2506.13923): a row sampled with guidance g is trained for the prompt q without it, and its ratio
    is off 1 from the first step on. A token that the policy does not expect without the guidance has a small one. A
    correction would count it twice.

    Args:
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high.
    """
    named = {"now.logp": rows["now.logp"], "old.logp": rows["sampler.logp"], "advantage": rows["advantage"]}
    return clip(rows.adding(of_tokens=named), clip_low=clip_low, clip_high=clip_high)
