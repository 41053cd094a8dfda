"""The rows that an update learns from: N rows, T completion tokens end to end."""

from typing import Any

from torch import Tensor

from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.objectives.rows import Rows


def learning_rows(
    prompts: Ragged,
    completions: Ragged,
    *,
    logprobs: Tensor,
    temperature: Tensor,
    trained: Tensor | None = None,
    compared: Tensor | None = None,
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
        columns: Columns of rows, (N,) each.
    """
    if len(logprobs) != len(completions.values):
        raise ValueError(f"{len(completions.values)} completion tokens have {len(logprobs)} log-probs")
    of_tokens = {"sampler.logp": logprobs, "trained": trained, "compared": compared}
    return Rows(
        {
            "prompt": prompts,
            "prompt.number": distinct(prompts),
            "completion": completions,
            "temperature": temperature,
            "length": completions.lengths,
            **columns,
        },
        {name: values for name, values in of_tokens.items() if values is not None},
        completions.lengths,
    )
