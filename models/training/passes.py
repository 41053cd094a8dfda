"""Forward passes over the rows of an update."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, Logprobs, TokenLogprobs, token_logprobs
from gradus.models.training.packed.packing import Pack
from gradus.models.training.rollouts import Rollouts


def pass_logprobs(
    model: PreTrainedModel, rollouts: Rollouts, pack: Pack, form: Form, *, entropy_grad: bool = False
) -> TokenLogprobs:
    """Log-probs and entropies of a pack's completion tokens, at the temperature that they were sampled at."""
    asked = Asked(entropy_grad=entropy_grad, drawn=rollouts.drawing(pack.rows))
    return token_logprobs(model, pack, rollouts.temperature[pack.rows], form, asked)


def all_logprobs(
    model: PreTrainedModel, rollouts: Rollouts, micro_tokens: int, on_rows: Callable[[int], None]
) -> Logprobs:
    """The model's log-prob of every completion token, all T in their order."""
    form = form_of(model)
    found: list[Logprobs] = []
    with torch.no_grad():
        for pack in rollouts.packs(torch.arange(rollouts.num_rows), form, micro_tokens):
            own = pass_logprobs(model, rollouts, pack, form)
            found.append(Logprobs(rollouts.completions.places(pack.rows), own.logp, own.truncated_logp))
            on_rows(len(pack.rows))
    return Logprobs.joined(found)
