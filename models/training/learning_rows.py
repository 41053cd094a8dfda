"""The rows that an update learns from, and the difference between the log-probs of their sampler and the trainer's.

N rows, T completion tokens end to end.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradus.components.rows import Marks
from gradus.models.objectives.losses import MAX_LOG_RATIO, k3_divergence
from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.objectives.rows import Rows, all_finite


def learning_rows(
    prompts: Ragged,
    completions: Ragged,
    *,
    logprobs: Tensor,
    temperature: Tensor,
    trained: Tensor | None = None,
    compared: Tensor | None = None,
    measured: Mapping[str, Tensor] | None = None,
    marks: Mapping[str, Marks] | None = None,
    **columns: Any,
) -> Rows:
    """Return rows with what passes and losses read: prompts, completions, the sampler's log-probs, other columns.

    Raise ValueError if there are not as many log-probs as completion tokens.

    Args:
        prompts: N lists of token ids, none empty.
        completions: N lists of token ids, T in all.
        logprobs: (T,) float32: the sampler's log-probs, nats.
        temperature: (N,) float32 sampling temperature.
        trained: (T,) bool: tokens that carry loss; None: all. Tool output, inserted text and given prefixes carry none.
        compared: (T,) bool: tokens that the policy sampled after the prompt that they are trained for, whose log-probs
            sampler and trainer must agree on; None: all.
        measured: Further columns of tokens by name, (T,) each.
        marks: Marked parts of the completions by name, `marks.NAME`.
        columns: Columns of rows, (N,) each.
    """
    if len(logprobs) != len(completions.values):
        raise ValueError(f"{len(completions.values)} completion tokens have {len(logprobs)} log-probs")
    every = torch.ones(len(logprobs), dtype=torch.bool)
    return Rows(
        {
            "prompt": prompts,
            "prompt.number": distinct(prompts),
            "completion": completions,
            "temperature": temperature,
            "length": completions.lengths,
            **columns,
        },
        {
            "tokens": completions.values,
            "sampler.logp": logprobs,
            "trained": every if trained is None else trained,
            "compared": every if compared is None else compared,
            **(measured or {}),
        },
        completions.lengths,
        marks=marks,
    )


def mismatch(rows: Rows, trainer: Tensor) -> dict[str, float]:
    """Compare sampler and trainer (T,) on the same tokens; ratio = exp(trainer - sampler), differences in nats.

    kl estimates KL(sampler || trainer) by k3. Tokens whose log-probs are not both finite count in masked_frac alone; if
    no others are left, it is the only metric. Empty if no token is compared.
    """
    compared = rows["compared"]
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


def row_differences(rows: Rows, trainer: Tensor) -> Tensor:
    """(N,) float64: mean |trainer - sampler| over a row's tokens whose log-probs are both finite; NaN without any."""
    difference = (trainer - rows["sampler.logp"]).abs().double()
    counted = rows.adding(mask=rows["compared"] & torch.isfinite(difference))
    return torch.where(counted.row_tokens > 0, counted.row_mean(difference), torch.nan)
