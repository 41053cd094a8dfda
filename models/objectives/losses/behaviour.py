"""Losses weighed by a ratio without gradient, of the policy before the update to another: decoupled PPO, iw-SFT."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.rows import Rows

ClipLow = Annotated[float, Ge(0.0)]
ClipHigh = Annotated[float, Ge(0.0)]


@component("loss", paper="arXiv 2110.00641", needs=("now.logp", "old.logp", "sampler.logp", "advantage"))
def decoupled(
    rows: Rows, *, clip_low: ClipLow = 0.2, clip_high: ClipHigh = 0.2, cap: Annotated[float, Gt(0.0)] = 5.0
) -> tuple[Tensor, Metrics]:
    """Decoupled PPO: L_t = -w_t min(rho_t A_t, b_t A_t), w = pi_prox / pi_behaviour, rho = pi / pi_prox.

    Batch size-invariance for policy optimization, arXiv 2110.00641; in asynchronous RL AReaL, arXiv 2505.24298.
    b_t is in [1 - low, 1 + high]; the proximal policy is that which the update began with, the behaviour the
    sampler. Takes the place of a correction. Tokens with w > cap are left out, as AReaL's code has it. Metrics as of
    `clip`, and behaviour_mean, the mean of w.

    Args:
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high.
        cap: Largest w that counts.
    """
    loss, metrics = clip(rows, clip_low=clip_low, clip_high=clip_high)
    weight = (rows["old.logp"] - rows["sampler.logp"]).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight = torch.where(weight <= cap, weight, 0.0)
    return weight * loss, {**metrics, "behaviour_mean": weight}


@component(
    "loss",
    paper="arXiv 2507.12856",
    needs=("now.logp", "old.logp", "reference.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
)
def iw_sft(
    rows: Rows, *, low: Annotated[float, Ge(0.0)] = 0.5, high: Annotated[float, Gt(0.0)] = 2.0
) -> tuple[Tensor, Metrics]:
    """Importance-weighted SFT: L_t = -w log pi_t, w = clip(q(o) / pi_ref(o), low, high) of the whole completion.

    Supervised Fine Tuning on Curated Data is Reinforcement Learning, arXiv 2507.12856: a tighter bound on the reward of
    filtered data. q is the policy as the update began, the paper's lagged copy; w has no gradient. The bounds are ours.
    Metric: curated_weight_mean.

    Args:
        low: Least weight of a completion.
        high: Largest weight of a completion.
    """
    log = rows.row_sum(rows["old.logp"] - rows["reference.logp"]).detach()
    weight = rows.of_token(log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(low, high))
    return -weight * rows["now.logp"], {"curated_weight_mean": weight}
