"""Corrections for rollouts that the trainer's own policy did not sample: one weight per token. M tokens.

The sampler may be another engine, or an older policy. Each token's loss is multiplied by w = p_trainer / p_sampler,
both at the start of the update and without gradient: of the token alone (less variance, biased where the past of the
token is unlikely too), or of its whole completion (unbiased, large variance). Large weights are cut off (truncated
importance sampling, Ionides 2008; per token as in IMPALA, arXiv 1802.01561) or their tokens left out (masked).
Where the sampler truncated (top-k, top-p), p_trainer is truncated likewise, and 0 for a token that this leaves out.
Left out: per-step weights between the two, baselines for the bias.
"""

from typing import Literal

import torch
from torch import Tensor

from gradus.models.objectives.losses import MAX_LOG_RATIO

Correction = Literal["none", "token_truncated", "token_masked", "sequence_truncated", "sequence_masked"]


def weights(logp_old: Tensor, logp_sampler: Tensor, row: Tensor, mask: Tensor, how: Correction, cap: float) -> Tensor:
    """Weight of every token (M,), float32: 1 everywhere for `none`.

    Truncated: min(w, cap). Masked: w where 1 / cap <= w <= cap, else 0. `row` (M,) numbers the completion of each
    token, `mask` (M,) says which tokens count; a completion's log ratio is the sum over those. A `logp_old` of -inf
    weighs 0: its token, or its whole completion, which the trainer could not have drawn. Deviation: |log w| is cut at
    MAX_LOG_RATIO.
    """
    if how == "none":
        return torch.ones_like(logp_sampler)
    log_ratio = torch.where(mask, logp_old - logp_sampler, torch.zeros_like(logp_sampler)).detach()
    if how.startswith("sequence"):
        summed = log_ratio.new_zeros(int(row.max()) + 1).index_add_(0, row, log_ratio)
        log_ratio = summed[row]
    weight = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().masked_fill(torch.isneginf(log_ratio), 0.0)
    if how.endswith("truncated"):
        return weight.clamp(max=cap)
    return torch.where((weight <= cap) & (weight >= 1 / cap), weight, torch.zeros_like(weight))
