"""Packs: the sequences of one forward pass end to end, without padding, a prompt once for all its completions.

Lengths alone decide which rows share a pass, and the inputs of the pass are built from these rows. Completions
that begin alike share those tokens too (trees, beside this file).
Shapes: N rows of an update, R rows and T tokens of a pack, M its completion tokens.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradus.models.objectives.ragged import Ragged, offsets, spans
from gradus.models.training.packed.trees import common_beginnings, paths, span_starts


def packs(prompt: Tensor, prompt_tokens: Tensor, completion_tokens: Tensor, budget_tokens: int) -> list[Tensor]:
    """Divide N rows into packs of at most `budget_tokens`, the rows of one prompt together where they fit.

    `prompt` (N,) numbers the prompts, equal ones alike; a prompt counts once in a pack. Best fit, the largest first.
    A row longer than the budget is a pack of its own. Every row occurs exactly once.
    Raise ValueError if the budget or a prompt's length is not positive.

    >>> [rows.tolist() for rows in packs(*map(torch.tensor, ([0, 1, 0, 2], [3, 2, 3, 4], [4, 1, 2, 5])), 12)]
    [[0, 2, 1], [3]]
    """
    if budget_tokens < 1:
        raise ValueError(f"a pack of {budget_tokens} tokens holds nothing")
    if len(prompt_tokens) and int(prompt_tokens.min()) < 1:
        raise ValueError("a row has no prompt: nothing predicts its first token")
    order = torch.argsort(prompt, stable=True)
    units = [
        part
        for rows in order.split(torch.unique_consecutive(prompt[order], return_counts=True)[1].tolist())
        for part in _parts(rows, int(prompt_tokens[rows[0]]), completion_tokens[rows], budget_tokens)
    ]
    sizes = [int(prompt_tokens[unit[0]]) + int(completion_tokens[unit].sum()) for unit in units]
    return [torch.cat([units[i] for i in chosen]) for chosen in best_fit(sizes, budget_tokens)]


def _parts(rows: Tensor, prompt_tokens: int, lengths: Tensor, budget_tokens: int) -> Sequence[Tensor]:
    """The rows of one prompt, in several parts if they exceed the budget together with it."""
    room = budget_tokens - prompt_tokens
    total = lengths.cumsum(0)
    first, found = 0, list[Tensor]()
    while first < len(rows):
        used = int(total[first - 1]) if first else 0
        last = max(first + 1, int(torch.searchsorted(total, used + room, right=True)))
        found.append(rows[first:last])
        first = last
    return found


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Put items into bins, the largest first, each into the fullest bin that it fits; indices by bin.

    >>> best_fit([3, 9, 4, 3], 10)
    [[1], [2, 0, 3]]
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        at = bisect_left(rooms, (sizes[item], -1))
        if at == len(rooms):
            bins.append([item])
            insort(rooms, (capacity - sizes[item], len(bins) - 1))
        else:
            room, number = rooms.pop(at)
            bins[number].append(item)
            insort(rooms, (room - sizes[item], number))
    return bins


def padded_batches(lengths: Tensor, budget_tokens: int) -> list[Tensor]:
    """Divide rows into batches whose padded size (rows x longest) stays within the budget, like lengths together.

    A row longer than the budget is a batch of its own. Every row occurs exactly once.

    >>> [rows.tolist() for rows in padded_batches(torch.tensor([3, 9, 4, 3]), 12)]
    [[0, 3, 2], [1]]
    """
    if budget_tokens < 1:
        raise ValueError(f"a batch of {budget_tokens} tokens holds nothing")
    order = torch.argsort(lengths, stable=True)
    sizes: list[int] = []
    # Rows come in ascending length, so the newest row is the one that all others are padded to.
    for length in lengths[order].tolist():
        if sizes and (sizes[-1] + 1) * length <= budget_tokens:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return list(order.split(sizes)) if sizes else []


@dataclass(frozen=True)
class Pack:
    """Inputs of a forward pass over some rows; see gradus.models.training.packed.forward."""

    rows: Tensor
    """(R,) int64, in the order of their completion tokens below; the rows of a prompt stand together."""
    prompts: Ragged
    """The R prompts."""
    completions: Ragged
    """The R completions; the M tokens whose log-probs are asked for are its values."""
    input_ids: Tensor
    """(T,) int64: each prompt once, followed by its completions, common beginnings of these once."""
    positions: Tensor
    """(T,) int64: a token's place in its own sequence."""
    predictors: Tensor
    """(M,) int64: the input token that predicts each completion token, the prompt's last for a first one."""
    spans: Tensor
    """(S,) int64: where spans of tokens begin that attend alike; see gradus.models.training.packed.trees."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.input_ids)


def pack_of(rows: Tensor, prompt: Tensor, prompts: Ragged, completions: Ragged, *, trees: bool = True) -> Pack:
    """Return the pack of some rows, those of one prompt beside each other; `prompt` (N,) numbers the prompts.

    With `trees` common beginnings of completions stand once, and rows of a prompt are put in another order for it.
    """
    change = np.flatnonzero(np.diff(prompt[rows].numpy())) + 1
    first = torch.from_numpy(np.concatenate([np.zeros(min(1, len(rows)), dtype=np.int64), change]))
    unit = torch.repeat_interleave(torch.arange(len(first)), torch.cat([first, first.new_tensor([len(rows)])]).diff())
    shared = torch.zeros_like(rows)
    if trees:
        order, shared = common_beginnings(unit, completions.select(rows))
        rows = rows[order]
    chosen, given = completions.select(rows), prompts.select(rows)
    prompt_lengths, ends = given.lengths[first], offsets(chosen.lengths - shared)
    sizes = prompt_lengths + ends[torch.cat([first[1:], first.new_tensor([len(rows)])])] - ends[first]
    starts = offsets(sizes)[:-1]
    at = (starts + prompt_lengths)[unit] + ends[:-1] - ends[:-1][first][unit]
    in_prompt, in_completion = spans(starts, prompt_lengths), paths(at, shared, chosen.lengths)
    input_ids = torch.empty(int(sizes.sum()), dtype=torch.int64)
    input_ids[in_prompt] = prompts.values[prompts.places(rows[first])]
    input_ids[in_completion] = chosen.values
    positions = torch.empty_like(input_ids)
    positions[in_prompt] = spans(torch.zeros_like(starts), prompt_lengths)
    positions[in_completion] = spans(prompt_lengths[unit], chosen.lengths)
    predictors, some = in_completion.roll(1), chosen.lengths > 0
    predictors[chosen.offsets[:-1][some]] = (starts + prompt_lengths - 1)[unit][some]
    return Pack(
        rows=rows,
        prompts=given,
        completions=chosen,
        input_ids=input_ids,
        positions=positions,
        predictors=predictors,
        spans=span_starts(first, starts, Ragged(in_completion, chosen.offsets), shared, at),
    )
