"""Forward passes over the rows of an update, in packs that shrink if memory runs out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.devices import give_back, is_out_of_memory
from gradus.models.training.division import turns
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, Logprobs, TokenLogprobs, each_field, token_logprobs
from gradus.models.training.packed.packing import Pack
from gradus.models.training.parallel.ranks import ALONE, Ranks
from gradus.models.training.rollouts import Rollouts

R = TypeVar("R")


class RanksMemoryError(RuntimeError):
    """Memory ran out on this rank while others wait for it; all have to begin anew with `num_tokens` at once."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"begin anew with {num_tokens} tokens at once")
        self.num_tokens = num_tokens


@dataclass
class Budget:
    """How many tokens go through a model at once: as asked for, then half as many whenever memory runs out."""

    num_tokens: int
    num_halvings: int = 0
    ranks: Ranks = ALONE
    """Those among whom the passes are divided, each with this budget."""

    def run(self, work: Callable[[int], R], longest: int) -> R:
        """Return what `work` returns for the budget; if it runs out of memory, call it again with half of it.

        `work` begins anew each time. Packs of one row cannot shrink: once the budget is below `longest`, the tokens of
        the longest row, the error is raised. Ranks cannot begin anew one by one: RanksMemoryError says with what.
        """
        while True:
            try:
                return work(self.num_tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.num_tokens <= longest:
                    raise
            half = max(1, self.num_tokens // 2)
            if self.ranks.num_ranks > 1:
                raise RanksMemoryError(half)
            give_back()
            self.num_tokens, self.num_halvings = half, self.num_halvings + 1


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
        for turn in turns(budget.ranks, rollouts, rows, form, num_tokens):
            found = pass_logprobs(model, rollouts, turn.pack, form, asked)
            chosen = rollouts.completions.places(turn.pack.rows)
            parts.append(found if turn.counts else each_field([found], lambda values: values[0][:0]))
            places.append(chosen if turn.counts else chosen[:0])
            on_rows(turn.num_rows)
        at, num_tokens_in_all = torch.cat(places), len(rollouts.completions.values)

        def in_order(values: list[Tensor]) -> Tensor:
            joined = torch.cat(values)
            return budget.ranks.summed(joined.new_zeros(num_tokens_in_all, *joined.shape[1:]).index_copy(0, at, joined))

        return each_field(parts, in_order)

    with torch.no_grad():
        return budget.run(work, rollouts.longest(rows))


def all_logprobs(
    model: PreTrainedModel, rollouts: Rollouts, budget: Budget, on_rows: Callable[[int], None]
) -> Logprobs:
    """The model's log-prob of every completion token, all T in their order."""
    found = all_tokens(model, rollouts, budget, on_rows)
    return Logprobs(torch.arange(len(found.logp)), found.logp, found.truncated_logp)
