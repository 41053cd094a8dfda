"""Difference between the log-probs that a sampler recorded and the trainer's. N rows, M tokens."""

import torch
from torch import Tensor

from gradus.models.objectives.losses import MAX_LOG_RATIO, k3_divergence
from gradus.models.objectives.rows import Rows, all_finite


def mismatch(rows: Rows, trainer: Tensor) -> dict[str, float]:
    """Compare sampler and trainer (M,) on the same tokens; ratio = exp(trainer - sampler), differences in nats.

    kl estimates KL(sampler || trainer) by k3. Tokens whose log-probs are not both finite count in masked_frac alone; if
    no others are left, it is the only metric. Empty if no token is compared.
    """
    compared = compared_tokens(rows)
    sampler, found = rows["sampler.logp"][compared], trainer[compared]
    if not len(found):
        return {}
    finite = all_finite(sampler, found)
    masked = {"mismatch/masked_frac": float((~finite).double().mean())}
    difference = (found - sampler)[finite].double()
    if difference.numel() == 0:
        return masked
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return {
        "mismatch/kl": float(k3_divergence(sampler[finite].double(), found[finite].double()).mean()),
        "mismatch/ratio_mean": float(ratio.mean()),
        "mismatch/ratio_max": float(ratio.max()),
        "mismatch/logp_diff_mean": float(difference.abs().mean()),
        "mismatch/logp_diff_max": float(difference.abs().max()),
        **masked,
    }


def compared_tokens(rows: Rows) -> Tensor:
    """Return the tokens that the policy sampled after the prompt that they are trained for, (M,) bool."""
    return rows["compared"] if "compared" in rows else torch.ones(len(rows.row), dtype=torch.bool)


def row_differences(rows: Rows, trainer: Tensor) -> Tensor:
    """(N,) float64: mean |trainer - sampler| over a row's tokens whose log-probs are both finite; NaN without any."""
    difference = (trainer - rows["sampler.logp"]).abs().double()
    counted = rows.adding(mask=compared_tokens(rows) & torch.isfinite(difference))
    return torch.where(counted.row_tokens > 0, counted.row_mean(difference), torch.nan)
