"""Exact attention over sequences laid end to end, in which completions share the prompt that they follow.

A completion's token attends to the whole of its prompt and to its own completion up to itself. Both parts are computed
apart, each by a kernel that also returns the logsumexp of its scores, and joined: with lse = logaddexp(lse_a, lse_b),
out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b. The backward pass calls each kernel's own with the joined out and
lse, from which it computes its share of the softmax (as in ring attention, arXiv 2310.01889). A prompt is so encoded
once for all its completions (Prefix Grouper, arXiv 2506.05433), without a mask of tokens x tokens.
Left out: sliding windows, caps of scores, sinks (refused); kernels of a GPU (flex, beside this file).
Shapes: T tokens end to end, H heads, K key heads, D head size, B sequences of a bucket, L its padded length.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from gradus.models.objectives.ragged import offsets

MAX_PADDED = 1.25
"""A bucket of sequences is padded to at most this multiple of its tokens."""
_UNSEEN = 1e30
"""Logsumexp of a padding query: exp(score - 1e30) = 0, so that nothing flows back from it."""
Spans = tuple[Tensor, Tensor]
"""Starts of sequences and their lengths, both (S,)."""


class Bucket:
    """B of S sequences, of like lengths, padded on the right: those of `rows` (B,)."""

    def __init__(self, spans: Spans, rows: Tensor) -> None:
        starts, lengths = (each[rows] for each in spans)
        at = torch.arange(int(lengths.max()))[None, :]
        self.real = at < lengths[:, None]
        """(B, L) bool: not padding."""
        self.index = torch.where(self.real, starts[:, None] + at, 0)
        """(B, L) int64: places of their tokens among the T; any place where there is padding."""
        self.tokens = self.index[self.real]
        """(n,) int64: the places of the real ones alone, row by row."""
        self.slots = self.real.flatten().nonzero()[:, 0]
        """(n,) int64: where these are in the flat (B * L,)."""

    def of_tokens(self, values: Tensor) -> Tensor:
        """Values (T, H, D) or (T, H) of its tokens as (B, H, L, D) or (B, H, L)."""
        taken = values.index_select(0, self.index.flatten())
        return taken.view(*self.index.shape, *values.shape[1:]).transpose(1, 2)

    def to_tokens(self, values: Tensor) -> Tensor:
        """Values (B, H, L, D) or (B, H, L) of the real tokens as (n, H, D) or (n, H)."""
        return values.transpose(1, 2).flatten(0, 1).index_select(0, self.slots)


class Blocks:
    """Attention mask by blocks of tokens: of causal sequences, and of queries with the prefix of each.

    No query is in one of the `prefixes` twice.
    """

    def __init__(self, sequences: Spans, prefixes: Sequence[tuple[Spans, Spans]]) -> None:
        self.causal = [Bucket(sequences, rows) for rows in like_lengths(sequences[1])]
        """Sequences within which a token attends to itself and to those before it; every token is in one."""
        self.shared = [
            (Bucket(queries, alike[rows]), Bucket(keys, alike[rows]))
            for queries, keys in prefixes
            for alike in like_lengths(keys[1])
            for rows in like_lengths(queries[1][alike])
        ]
        """Queries that attend to the whole of a prefix too, and those prefixes, row by row."""
        self.layers = set[int]()
        """The layers that have attended by them, each once even if it is computed again for its gradient."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Return what the tokens attend to, (1, H, T, D) -> (1, T, H, D)."""
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        flat = (part[0].transpose(0, 1) for part in (query, key, value))
        return cast("Tensor", _BlockAttention.apply(*flat, self, scale))[None]


def like_lengths(lengths: Tensor) -> Iterator[Tensor]:
    """Return the indices of lengths above 0 in groups that padding makes at most MAX_PADDED times as large.

    >>> [rows.tolist() for rows in like_lengths(torch.tensor([9, 2, 8, 0, 2]))]
    [[0, 2], [1, 4]]
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    order = order[: int((lengths > 0).sum())]
    sizes = lengths[order]
    before = offsets(sizes)
    first = 0
    while first < len(order):
        # Padded over real tokens of the rows from `first` on, for every number of rows.
        padded = sizes[first] * torch.arange(1, len(order) - first + 1)
        fits = padded <= MAX_PADDED * (before[first + 1 :] - before[first])
        last = int(fits.nonzero()[-1]) + 1
        yield order[first : first + last]
        first += last


class _BlockAttention(torch.autograd.Function):
    """softmax(q k^T scale) v within blocks. q (T, H, D), k and v (T, K, D) -> (T, H, D)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, scale: float) -> Tensor:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=wide)
        repeats = q.shape[1] // k.shape[1]
        for each in blocks.causal:
            found, scores = _forward(each.of_tokens(q), _keys(each, k, repeats), _keys(each, v, repeats), scale, None)
            out.index_copy_(0, each.tokens, each.to_tokens(found))
            lse.index_copy_(0, each.tokens, each.to_tokens(scores))
        for queries, prefix in blocks.shared:
            keys, values = _keys(prefix, k, repeats), _keys(prefix, v, repeats)
            found, scores = _forward(queries.of_tokens(q), keys, values, scale, prefix)
            _join(out, lse, queries, found, scores)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.blocks, ctx.scale, ctx.repeats = blocks, scale, repeats
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, lse = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        found = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        pairs = [(each, each, None) for each in ctx.blocks.causal]
        pairs += [(queries, prefix, prefix) for queries, prefix in ctx.blocks.shared]
        for queries, prefix, masked in pairs:
            scores = queries.of_tokens(lse).masked_fill(~queries.real[:, None, :], _UNSEEN)
            keys, values = _keys(prefix, k, ctx.repeats), _keys(prefix, v, ctx.repeats)
            given = (queries.of_tokens(grads[0]), queries.of_tokens(q), keys, values, queries.of_tokens(out), scores)
            parts = _backward(given, ctx.scale, masked)
            found[0].index_add_(0, queries.tokens, queries.to_tokens(parts[0]))
            for whole, part in zip(found[1:], parts[1:], strict=True):
                summed = part.unflatten(1, (-1, ctx.repeats)).sum(2) if ctx.repeats > 1 else part
                whole.index_add_(0, prefix.tokens, prefix.to_tokens(summed))
        return (*found, None, None)


def _keys(bucket: Bucket, values: Tensor, repeats: int) -> Tensor:
    taken = bucket.of_tokens(values)
    return taken.repeat_interleave(repeats, 1) if repeats > 1 else taken


def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float, prefix: Bucket | None) -> tuple[Tensor, Tensor]:
    """Output (B, H, L, D) and logsumexp (B, H, L): causal without a prefix, else over the whole prefix."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - torch's only form with lse
    return kernel(q, k, v, 0.0, prefix is None, attn_mask=_mask(prefix, q), scale=scale)


def _backward(given: tuple[Tensor, ...], scale: float, prefix: Bucket | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
    return kernel(*given, 0.0, prefix is None, attn_mask=_mask(prefix, given[0]), scale=scale)


def _mask(prefix: Bucket | None, q: Tensor) -> Tensor | None:
    """(B, 1, 1, L), -inf at the padding of a prefix; None without padding."""
    if prefix is None or bool(prefix.real.all()):
        return None
    return torch.zeros(prefix.real.shape, dtype=q.dtype).masked_fill(~prefix.real, -torch.inf)[:, None, None, :]


def _join(out: Tensor, lse: Tensor, queries: Bucket, found: Tensor, scores: Tensor) -> None:
    """Join a second part of the softmax of some queries to `out` and `lse`, in place."""
    at = queries.tokens
    mine, other = lse.index_select(0, at), queries.to_tokens(scores)
    joined = torch.logaddexp(mine, other)
    first = out.index_select(0, at) * (mine - joined).exp()[..., None]
    second = queries.to_tokens(found) * (other - joined).exp()[..., None]
    out.index_copy_(0, at, (first + second).to(out.dtype))
    lse.index_copy_(0, at, joined)
