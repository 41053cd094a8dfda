"""Forward passes over the rows of an update, in packs that are divided among ranks and shrink if memory runs out.

Every rank computes the division for all ranks from lengths alone, so nothing is exchanged. FSDP needs equal numbers of
forward passes: a rank with fewer packs repeats the smallest and discards the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from operator import attrgetter
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.devices import give_back, is_out_of_memory
from gradus.models.objectives.rows import Rows
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, TokenLogprobs, each_field, token_logprobs
from gradus.models.training.packed.packing import Pack, pack_of, packs, padded_batches
from gradus.models.training.parallel import ALONE, Ranks

_ROOM = 1.05
"""Factor by which the packs' size is raised until they are few enough: packs of exactly equal size are rare."""
_size = attrgetter("num_tokens")
R = TypeVar("R")
OnRows = Callable[[int], None]
"""Is called with the number of rows that went through a model."""


def unobserved(num_rows: int) -> None:
    """Count nothing."""


class Turn(NamedTuple):
    """One forward pass of this rank, while every other rank has one too."""

    pack: Pack
    counts: bool
    """False for a pack that another rank computes as well."""
    num_rows: int
    """Rows of all ranks' packs of this turn."""


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
    model: PreTrainedModel, rows: Rows, budget: Budget, on_rows: OnRows = unobserved, asked: Asked | None = None
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


def longest(rows: Rows) -> int:
    """Tokens of the longest row, its prompt included."""
    return int((rows["prompt"].lengths + rows.lengths).max())


def divided(rows: Rows, chosen: Tensor, form: Form, budget_tokens: int) -> list[Pack]:
    """Divide some rows into forward passes of at most `budget_tokens`, padding included where rows are padded."""
    prompts, numbers, completions = rows["prompt"], rows["prompt.number"], rows["completion"]
    prompt_tokens, completion_tokens = prompts.lengths[chosen], rows.lengths[chosen]
    if form == "packed":
        parts = packs(numbers[chosen], prompt_tokens, completion_tokens, budget_tokens)
    else:
        parts = padded_batches(prompt_tokens + completion_tokens, budget_tokens)
    return [pack_of(chosen[part], numbers, prompts, completions, trees=form == "packed") for part in parts]


def turns(ranks: Ranks, rows: Rows, chosen: Tensor, form: Form, budget_tokens: int) -> list[Turn]:
    """Return this rank's forward passes over its share of some rows, as many as every other rank has."""
    packs = divided(rows, chosen, form, budget_tokens)
    if ranks.num_ranks == 1 or not packs:
        return [Turn(pack, True, len(pack.rows)) for pack in packs]
    shares = _shares(_levelled(packs, ranks.num_ranks, rows, chosen, form, budget_tokens), ranks.num_ranks)
    smallest = min(chain(*shares), key=_size)
    found: list[Turn] = []
    for together in zip_longest(*shares):
        own, num_rows = together[ranks.rank], sum(len(pack.rows) for pack in together if pack is not None)
        found.append(Turn(smallest if own is None else own, own is not None, num_rows))
    return found


def _levelled(
    packs: list[Pack], num_ranks: int, rows: Rows, chosen: Tensor, form: Form, budget_tokens: int
) -> list[Pack]:
    """Divide the rows anew into packs of like size, as many for each rank where possible; none above the budget."""
    num_turns = -(-len(packs) // num_ranks)
    if len(packs) == num_turns * num_ranks:
        return packs
    size = max(sum(map(_size, packs)) / (num_turns * num_ranks), longest(rows.select(chosen)))
    while size < budget_tokens:
        found = divided(rows, chosen, form, int(size))
        if len(found) <= num_turns * num_ranks:
            return found
        size *= _ROOM
    return packs


def _shares(packs: list[Pack], num_ranks: int) -> list[list[Pack]]:
    """Packs by rank: the largest first, each to the rank with the fewest packs and of those with the fewest tokens."""
    shares: list[list[Pack]] = [[] for _ in range(num_ranks)]
    for pack in sorted(packs, key=_size, reverse=True):
        min(shares, key=lambda share: (len(share), sum(map(_size, share)))).append(pack)
    return shares
