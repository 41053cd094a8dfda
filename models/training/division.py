"""Division of the packs of some rows among ranks.

Every rank computes this for all ranks from lengths alone, so nothing is exchanged. FSDP needs equal numbers of forward
passes: a rank with fewer packs repeats the smallest and discards the result.
"""

from typing import NamedTuple

from torch import Tensor

from gradus.models.objectives.rows import Rows
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.packing import Pack, pack_of, packs, padded_batches
from gradus.models.training.parallel.ranks import Ranks

_ROOM = 1.05
"""Factor by which the packs' size is raised until they are few enough: packs of exactly equal size are rare."""


class Turn(NamedTuple):
    """One forward pass of this rank, while every other rank has one too."""

    pack: Pack
    counts: bool
    """False for a pack that another rank computes as well."""
    num_rows: int
    """Rows of all ranks' packs of this turn."""


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
    smallest = min((pack for share in shares for pack in share), key=_size)
    found: list[Turn] = []
    for number in range(max(map(len, shares))):
        own = shares[ranks.rank][number : number + 1]
        num_rows = sum(len(pack.rows) for share in shares for pack in share[number : number + 1])
        found.append(Turn(own[0] if own else smallest, bool(own), num_rows))
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


def _size(pack: Pack) -> int:
    return pack.num_tokens
