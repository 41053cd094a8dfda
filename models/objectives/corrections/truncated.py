"""Importance weights of tokens and of completions, cut off at a cap or masked beyond it.

Of the token alone: less variance, biased if the past of the token is unlikely too. Of its whole completion: unbiased,
large variance. Large weights are cut off (truncated importance sampling, Ionides 2008; per token as in IMPALA,
arXiv 1802.01561) or their tokens left out (masked). A completion's log ratio is the sum over its counted tokens.
Deviation: |log w| is cut at MAX_LOG_RATIO.
"""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.corrections import as_weights, log_weights, metrics
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows

Cap = Annotated[float, Ge(1.0)]


@component("correction", paper="arXiv 1802.01561", needs=("old.logp", "sampler.logp"))
def token_truncated(rows: Rows, *, cap: Cap = 2.0) -> tuple[Tensor, Metrics]:
    """Weight each token by min(w, cap).

    Args:
        cap: Largest weight.
    """
    weight = as_weights(_log_ratio(rows)).clamp(max=cap)
    return weight, _metrics(weight, cap)


@component("correction", needs=("old.logp", "sampler.logp"))
def token_masked(rows: Rows, *, cap: Cap = 2.0) -> tuple[Tensor, Metrics]:
    """Weight each token by w if 1 / cap <= w <= cap, else by 0.

    Args:
        cap: Largest weight that counts; 1 / cap is the smallest.
    """
    weight = _masked(as_weights(_log_ratio(rows)), cap)
    return weight, _metrics(weight, cap)


@component("correction", paper="arXiv 1802.01561", needs=("old.logp", "sampler.logp"))
def sequence_truncated(rows: Rows, *, cap: Cap = 2.0) -> tuple[Tensor, Metrics]:
    """Weight each token by min(w, cap), w of its whole completion.

    Args:
        cap: Largest weight.
    """
    weight = rows.of_token(as_weights(rows.row_sum(_log_ratio(rows)))).clamp(max=cap)
    return weight, _metrics(weight, cap)


@component("correction", needs=("old.logp", "sampler.logp"))
def sequence_masked(rows: Rows, *, cap: Cap = 2.0) -> tuple[Tensor, Metrics]:
    """Weight each token by w if 1 / cap <= w <= cap, else by 0; w of its whole completion.

    Args:
        cap: Largest weight that counts; 1 / cap is the smallest.
    """
    weight = _masked(rows.of_token(as_weights(rows.row_sum(_log_ratio(rows)))), cap)
    return weight, _metrics(weight, cap)


def _log_ratio(rows: Rows) -> Tensor:
    return log_weights(rows, rows["old.logp"])


def _masked(weight: Tensor, cap: float) -> Tensor:
    return torch.where((weight <= cap) & (weight >= 1 / cap), weight, torch.zeros_like(weight))


def _metrics(weight: Tensor, cap: float) -> Metrics:
    return metrics(weight, (weight >= cap) | (weight == 0))
