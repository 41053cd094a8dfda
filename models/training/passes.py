"""Forward passes over the rows of an update, in packs that shrink if memory runs out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.devices import give_back, is_out_of_memory
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, Logprobs, TokenLogprobs, each_field, token_logprobs
from gradus.models.training.packed.packing import Pack
from gradus.models.training.rollouts import Rollouts

R = TypeVar("R")


@dataclass
class Budget:
    """How many tokens go through a model at once: as asked for, then half as many whenever memory runs out."""

    num_tokens: int
    num_halvings: int = 0

    def run(self, work: Callable[[int], R], longest: int) -> R:
        """Return what `work` returns for the budget; if it runs out of memory, call it again with half of it.

        `work` begins anew each time. Packs of one row cannot shrink: once the budget is below `longest`, the tokens of
        the longest row, the error is raised.
        """
        while True:
            try:
                return work(self.num_tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.num_tokens <= longest:
                    raise
            give_back()
            self.num_tokens, self.num_halvings = max(1, self.num_tokens // 2), self.num_halvings + 1


def pass_logprobs(
    model: PreTrainedModel, rollouts: Rollouts, pack: Pack, form: Form, asked: Asked | None = None
) -> TokenLogprobs:
    """Log-probs and entropies of a pack's completion tokens, at the temperature that they were sampled at."""
    asked = replace(asked or Asked(), drawn=rollouts.drawing(pack.rows))
    return token_logprobs(model, pack, rollouts.temperature[pack.rows], form, asked)


def all_tokens(
    model: PreTrainedModel,
    rollouts: Rollouts,
    budget: Budget,
    on_rows: Callable[[int], None],
    asked: Asked | None = None,
) -> TokenLogprobs:
    """Log-probs and what else is asked for, of all T completion tokens in their order, without gradient."""
    form, rows = form_of(model), torch.arange(rollouts.num_rows)

    def work(num_tokens: int) -> TokenLogprobs:
        places, parts = list[Tensor](), list[TokenLogprobs]()
        for pack in rollouts.packs(rows, form, num_tokens):
            parts.append(pass_logprobs(model, rollouts, pack, form, asked))
            places.append(rollouts.completions.places(pack.rows))
            on_rows(len(pack.rows))
        order = torch.argsort(torch.cat(places))
        return each_field(parts, lambda values: torch.cat(values)[order])

    with torch.no_grad():
        return budget.run(work, rollouts.longest(rows))


def all_logprobs(
    model: PreTrainedModel, rollouts: Rollouts, budget: Budget, on_rows: Callable[[int], None]
) -> Logprobs:
    """The model's log-prob of every completion token, all T in their order."""
    found = all_tokens(model, rollouts, budget, on_rows)
    return Logprobs(torch.arange(len(found.logp)), found.logp, found.truncated_logp)
