"""Importance weights of tokens and of completions, cut off at a cap or masked beyond it.

Of the token alone: less variance, biased if the past of the token is unlikely too. Of its whole completion: unbiased,
large variance. Large weights are cut off (truncated importance sampling, Ionides 2008; per token as in IMPALA,
arXiv 1802.01561) or their tokens left out (masked). A completion's log ratio is the sum over its counted tokens; a
`logp_old` of -inf weighs 0: its token, or its whole completion, which the trainer could not have drawn.
Deviation: |log w| is cut at MAX_LOG_RATIO.
"""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics

Cap = Annotated[float, Ge(1.0)]


@component("importance weights", paper="arXiv 1802.01561")
def token_truncated(
    logp_old: Tensor,
    logp_sampler: Tensor,
    row: Tensor,  # noqa: ARG001 - of every kind of weights
    mask: Tensor,
    *,
    cap: Cap = 2.0,
) -> tuple[Tensor, Metrics]:
    """Weight each token by min(w, cap).

    Args:
        logp_old: The trainer's log-probs when the update began (M,).
        logp_sampler: The log-probs that the sampler recorded (M,).
        row: The completion of each token (M,).
        mask: Tokens that count (M,).
        cap: Largest weight.
    """
    weight = _token_weights(logp_old, logp_sampler, mask).clamp(max=cap)
    return weight, _metrics(weight, cap)


@component("importance weights")
def token_masked(
    logp_old: Tensor,
    logp_sampler: Tensor,
    row: Tensor,  # noqa: ARG001 - of every kind of weights
    mask: Tensor,
    *,
    cap: Cap = 2.0,
) -> tuple[Tensor, Metrics]:
    """Weight each token by w if 1 / cap <= w <= cap, else by 0.

    Args:
        logp_old: The trainer's log-probs when the update began (M,).
        logp_sampler: The log-probs that the sampler recorded (M,).
        row: The completion of each token (M,).
        mask: Tokens that count (M,).
        cap: Largest weight that counts; 1 / cap is the smallest.
    """
    weight = _masked(_token_weights(logp_old, logp_sampler, mask), cap)
    return weight, _metrics(weight, cap)


@component("importance weights", paper="arXiv 1802.01561")
def sequence_truncated(
    logp_old: Tensor, logp_sampler: Tensor, row: Tensor, mask: Tensor, *, cap: Cap = 2.0
) -> tuple[Tensor, Metrics]:
    """Weight each token by min(w, cap), w of its whole completion.

    Args:
        logp_old: The trainer's log-probs when the update began (M,).
        logp_sampler: The log-probs that the sampler recorded (M,).
        row: The completion of each token (M,).
        mask: Tokens that count (M,).
        cap: Largest weight.
    """
    weight = _sequence_weights(logp_old, logp_sampler, row, mask).clamp(max=cap)
    return weight, _metrics(weight, cap)


@component("importance weights")
def sequence_masked(
    logp_old: Tensor, logp_sampler: Tensor, row: Tensor, mask: Tensor, *, cap: Cap = 2.0
) -> tuple[Tensor, Metrics]:
    """Weight each token by w if 1 / cap <= w <= cap, else by 0; w of its whole completion.

    Args:
        logp_old: The trainer's log-probs when the update began (M,).
        logp_sampler: The log-probs that the sampler recorded (M,).
        row: The completion of each token (M,).
        mask: Tokens that count (M,).
        cap: Largest weight that counts; 1 / cap is the smallest.
    """
    weight = _masked(_sequence_weights(logp_old, logp_sampler, row, mask), cap)
    return weight, _metrics(weight, cap)


def _token_weights(logp_old: Tensor, logp_sampler: Tensor, mask: Tensor) -> Tensor:
    return _weights(_log_ratio(logp_old, logp_sampler, mask))


def _sequence_weights(logp_old: Tensor, logp_sampler: Tensor, row: Tensor, mask: Tensor) -> Tensor:
    log_ratio = _log_ratio(logp_old, logp_sampler, mask)
    return _weights(log_ratio.new_zeros(int(row.max()) + 1).index_add_(0, row, log_ratio)[row])


def _log_ratio(logp_old: Tensor, logp_sampler: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, logp_old - logp_sampler, torch.zeros_like(logp_sampler)).detach()


def _weights(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().masked_fill(torch.isneginf(log_ratio), 0.0)


def _masked(weight: Tensor, cap: float) -> Tensor:
    return torch.where((weight <= cap) & (weight >= 1 / cap), weight, torch.zeros_like(weight))


def _metrics(weight: Tensor, cap: float) -> Metrics:
    """Mean and maximum of the weights, and the share of tokens cut off or left out."""
    cut = (weight >= cap) | (weight == 0)
    return {"correction_mean": weight, "correction_max": weight, "correction_cut_frac": cut.float()}
