"""Importance weights of what the trainer's own policy did not sample: `(rows, *, settings) -> ((M,), metrics)`.

The sampler may be another engine, or an older policy. Each token's loss is multiplied by w = p_trainer / p_sampler,
both at the start of the update and without gradient. Tokens count here that have the log-probs of a sampler.
Left out: truncated sampling (top-k, top-p), per-step weights between token and sequence, baselines for the bias.
"""

import torch
from torch import Tensor

from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


def log_weights(rows: Rows, trainer: Tensor) -> Tensor:
    """Return log w of each token, trainer less sampler, without gradient; 0 where the token does not count, (M,)."""
    return torch.where(rows.mask, trainer - rows["sampler.logp"], 0.0).detach()


def as_weights(log: Tensor) -> Tensor:
    """Return the weights, |log| cut at MAX_LOG_RATIO."""
    return log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def metrics(weight: Tensor, cut: Tensor) -> Metrics:
    """Return the mean and maximum of weights, and the share of tokens that are cut off or left out."""
    return {"correction_mean": weight, "correction_max": weight, "correction_cut_frac": cut.float()}
