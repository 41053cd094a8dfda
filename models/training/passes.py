"""Forward passes over the rows of an update, in packs that shrink if memory runs out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.devices import give_back, is_out_of_memory
from gradus.models.objectives.rows import Rows
from gradus.models.training.division import longest, turns
from gradus.models.training.packed.forward import form_of
from gradus.models.training.packed.logprobs import Asked, TokenLogprobs, each_field, token_logprobs
from gradus.models.training.parallel.ranks import ALONE, Ranks

R = TypeVar("R")
OnRows = Callable[[int], None]
"""Is called with the number of rows that went through a model."""


def unobserved(num_rows: int) -> None:
    """Count nothing."""


class RanksMemoryError(RuntimeError):
    """Memory ran out on this rank while others wait for it; all have to begin anew with `num_tokens` at once."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"begin anew with {num_tokens} tokens at once")
        self.num_tokens = num_tokens


@dataclass
class Budget:
    """Number of tokens that go through a model at once: as asked for, then half as many whenever memory runs out."""

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


def all_tokens(
    model: PreTrainedModel,
    rows: Rows,
    budget: Budget,
    on_rows: OnRows = unobserved,
    asked: Asked | None = None,
) -> TokenLogprobs:
    """Log-probs and what else is asked for, of all M completion tokens in their order, without gradient.

    They are at the temperature that the tokens were sampled at. `on_rows` is called with the number of rows that went
    through the model.
    """
    form, asked = form_of(model), asked or Asked()

    def work(num_tokens: int) -> TokenLogprobs:
        places, parts = list[Tensor](), list[TokenLogprobs]()
        for turn in turns(budget.ranks, rows, torch.arange(rows.num_rows), form, num_tokens):
            found = token_logprobs(model, turn.pack, rows["temperature"][turn.pack.rows], form, asked)
            chosen = rows.places(turn.pack.rows)
            parts.append(found if turn.counts else each_field([found], lambda values: values[0][:0]))
            places.append(chosen if turn.counts else chosen[:0])
            on_rows(turn.num_rows)
        at, num_tokens_in_all = torch.cat(places), len(rows.row)

        def in_order(values: list[Tensor]) -> Tensor:
            joined = torch.cat(values)
            return budget.ranks.summed(joined.new_zeros(num_tokens_in_all, *joined.shape[1:]).index_copy(0, at, joined))

        return each_field(parts, in_order)

    with torch.no_grad():
        return budget.run(work, longest(rows))
