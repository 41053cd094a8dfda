"""Importance weights of rollouts that the trainer's own policy did not sample: one weight per token. M tokens.

`(logp_old, logp_sampler, row, mask, *, settings) -> ((M,) float32 weights, metrics)`. The sampler may be another
engine, or an older policy. Each token's loss is multiplied by w = p_trainer / p_sampler, both at the start of the
update and without gradient. `row` (M,) numbers the completion of each token, `mask` (M,) says which tokens count.
Where the sampler truncated (top-k, top-p), p_trainer is truncated likewise, and 0 (a `logp_old` of -inf) for a token
that this leaves out.
Left out: per-step weights between token and sequence, baselines for the bias.
"""

from collections.abc import Callable

from torch import Tensor

from gradus.models.objectives.losses import Metrics

ImportanceWeights = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Metrics]]
