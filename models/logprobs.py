"""Log-probs and entropies of completion tokens under a model, in micro-batches of right-padded rows.

Only completion positions reach the vocabulary: hidden states of prompts and padding are dropped first.
Shapes: R rows, L padded length, M completion tokens of all rows end to end, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

CHUNK_TOKENS = 4096
"""Positions whose logits (CHUNK_TOKENS, V) are in memory at once."""


@dataclass(frozen=True)
class Sequences:
    """Rows of one micro-batch: prompts and completions as token ids."""

    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]


def token_logprobs(model: PreTrainedModel, rows: Sequences, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy (nats, float32) of every completion token at its row's temperature: (M,), (M,).

    `temperature` is (R,); 0 (greedy) is read at temperature 1, as the sampler records it.
    """
    ids, mask, places, targets = _padded(rows)
    backbone = model.get_decoder()
    hidden = backbone(input_ids=ids, attention_mask=None if bool(mask.all()) else mask).last_hidden_state
    chosen = hidden[places[:, 0], places[:, 1]]
    warmth = torch.where(temperature == 0, 1.0, temperature).float()[places[:, 0]]
    head = cast("torch.nn.Module", model.get_output_embeddings())
    parts: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(targets), CHUNK_TOKENS):
        piece = slice(start, start + CHUNK_TOKENS)
        if len(targets) > CHUNK_TOKENS and torch.is_grad_enabled():
            parts.append(
                checkpoint(_head, head, chosen[piece], targets[piece], warmth[piece], use_reentrant=False)  # pyright: ignore[reportArgumentType]
            )
        else:
            parts.append(_head(head, chosen[piece], targets[piece], warmth[piece]))
    return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _head(head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(head(hidden).float() / temperature[:, None], -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, targets[:, None])[:, 0], entropy


def _padded(rows: Sequences) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids and mask (R, L), places (M, 2) of the positions that predict completion tokens, and those tokens (M,)."""
    lengths = [len(p) + len(c) for p, c in zip(rows.prompts, rows.completions, strict=True)]
    ids = torch.zeros((len(lengths), max(lengths)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    places: list[Tensor] = []
    targets: list[Tensor] = []
    for row, (prompt, completion) in enumerate(zip(rows.prompts, rows.completions, strict=True)):
        tokens = torch.tensor([*prompt, *completion])
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        at = torch.arange(len(prompt) - 1, len(tokens) - 1)
        places.append(torch.stack([torch.full_like(at, row), at], -1))
        targets.append(tokens[len(prompt) :])
    return ids, mask, torch.cat(places), torch.cat(targets)
