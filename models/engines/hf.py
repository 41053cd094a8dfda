"""The embedded engine: our own decoding loop over a transformers model.

A prompt that several requests share is computed once and its cache repeated; prompts are batched by length; finished
rows leave the batch; the cache is written in place. Each row's random numbers come from its own seed, one for each
position, so they depend on neither batch nor shard. (On a CPU the logits themselves may differ in the last bit between
batch shapes; the same requests in the same order give the same bits.)

Left out: beam search, penalties, structured output. Shapes: B rows, T cached tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from models.engines.base import Finished, FinishReason, Request
from models.policy import Dtype, Policy, load_policy

GROWTH_TOKENS = 64
"""Cache room is made for so many tokens at a time."""

COMPACT_FRAC = 0.125
"""Finished rows leave the batch once they are this share of it."""


class GrowingLayer(DynamicLayer):
    """A cache layer written in place: concatenating at every token costs more than the attention on a CPU."""

    _room: tuple[torch.Tensor, torch.Tensor] | None = None
    _length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values (B, heads, new, dim) and give all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._length + key_states.shape[-2]
        if self._room is None or end > self._room[0].shape[-2]:
            self._room = (self._grown(0, key_states, end), self._grown(1, value_states, end))
        keys, values = self._room
        keys[:, :, self._length : end] = key_states
        values[:, :, self._length : end] = value_states
        self._length = end
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep, or repeat, the rows of these indices."""
        if self._room is not None:
            self._room = (self._room[0][indices], self._room[1][indices])
            self.keys, self.values = (room[:, :, : self._length] for room in self._room)

    def _grown(self, which: int, states: torch.Tensor, end: int) -> torch.Tensor:
        batch, heads, _, dim = states.shape
        grown = states.new_zeros((batch, heads, end + GROWTH_TOKENS, dim))
        if self._room is not None:
            grown[:, :, : self._length] = self._room[which][:, :, : self._length]
        return grown


@dataclass
class _Row:
    """One completion in the making."""

    index: int
    request: Request
    uniforms: np.ndarray[Any, np.dtype[np.float64]]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def finish(self, ends: frozenset[int]) -> Finished | None:
        """The finished completion, if the last token ended it."""
        reason: FinishReason = "stop"
        if self.tokens[-1] not in ends:
            if len(self.tokens) < self.request.max_tokens:
                return None
            reason = "length"
        return Finished(self.index, self.tokens, self.logprobs, reason)


class HfEngine:
    """Engine `transformers`; give it a policy, or `load` a folder."""

    name = "transformers"

    def __init__(self, policy: Policy | None = None, *, dtype: Dtype = "auto", batch_rows: int = 512) -> None:
        self._policy = policy
        self._dtype: Dtype = dtype
        self._batch_rows = batch_rows

    @property
    def policy(self) -> Policy:
        """The policy that is loaded."""
        if self._policy is None:
            raise RuntimeError("no policy is loaded")
        return self._policy

    def load(self, folder: Path) -> None:
        """Take the weights of a checkpoint folder."""
        self._policy = load_policy(folder, self._dtype)

    def generate(self, requests: Sequence[Request]) -> Iterator[Finished]:
        """Sample every request once, shortest prompts first, `batch_rows` at a time."""
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_tokens), requests[i].prompt_tokens))
        for start in range(0, len(order), self._batch_rows):
            rows = [_row(i, requests[i]) for i in order[start : start + self._batch_rows]]
            yield from self._decode(rows)

    @torch.inference_mode()
    def logprobs(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs (nats, temperature 1) of given completion tokens after their prompts."""
        found: list[list[float]] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            ids = torch.tensor([[*prompt, *completion]])
            logits = self.policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            chosen = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])
            found.append(chosen[:, 0].tolist())
        return found

    def close(self) -> None:
        """Let go of the policy."""
        self._policy = None

    @torch.inference_mode()
    def _decode(self, rows: list[_Row]) -> list[Finished]:
        ends = frozenset(self.policy.end_tokens)
        step = _Prefilled.of(self.policy, [row.request.prompt_tokens for row in rows])
        finished: list[Finished] = []
        live, kept = rows, list(range(len(rows)))
        done = np.zeros(len(rows), dtype=bool)
        for position in range(max(row.request.max_tokens for row in rows)):
            tokens, logprobs = sample(step.logits, live, position)
            for place in kept:
                row = live[place]
                row.tokens.append(int(tokens[place]))
                row.logprobs.append(float(logprobs[place]))
                ended = row.finish(ends)
                if ended is not None:
                    finished.append(ended)
                    done[place] = True
            kept = [place for place in kept if not done[place]]
            if not kept:
                break
            if len(live) - len(kept) >= COMPACT_FRAC * len(live):
                step.keep(kept)
                tokens = tokens[kept]
                live = [live[place] for place in kept]
                kept, done = list(range(len(live))), np.zeros(len(live), dtype=bool)
            step.advance(tokens)
        return finished


class _Prefilled:
    """The state of a batch between two tokens: cache, mask, positions and the logits (B, V) of the next token."""

    def __init__(self, policy: Policy, cache: Cache, mask: torch.Tensor, logits: torch.Tensor) -> None:
        self._model = policy.model
        self._cache = cache
        self._mask = mask
        self._padded = not bool(mask.all())
        self._positions = mask.sum(-1)
        self.logits = logits

    @classmethod
    def of(cls, policy: Policy, prompts: list[tuple[int, ...]]) -> "_Prefilled":
        """Compute each different prompt once (left-padded to the longest) and repeat its cache for its rows."""
        places: dict[tuple[int, ...], int] = {}
        index = torch.tensor([places.setdefault(prompt, len(places)) for prompt in prompts])
        length = max(map(len, places))
        pad = policy.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (length - len(p)) + list(p) for p in places])
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in places])
        cache = _empty_cache(policy)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        attention = None if bool(mask.all()) else mask
        out = policy.model(
            input_ids=ids, attention_mask=attention, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        cache.batch_select_indices(index)
        return cls(policy, cache, mask[index], out.logits[index, -1])

    def keep(self, places: list[int]) -> None:
        """Drop every other row."""
        index = torch.tensor(places)
        self._cache.batch_select_indices(index)
        self._mask, self._positions = self._mask[index], self._positions[index]
        self._padded = self._padded and not bool(self._mask.all())

    def advance(self, tokens: torch.Tensor) -> None:
        """Feed one token a row and take the logits that follow it."""
        if self._padded:
            self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], -1)
        out = self._model(
            input_ids=tokens[:, None],
            attention_mask=self._mask if self._padded else None,
            position_ids=self._positions[:, None],
            past_key_values=self._cache,
        )
        self._positions = self._positions + 1
        self.logits = out.logits[:, -1]


def sample(logits: torch.Tensor, rows: Sequence[_Row], position: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverse CDF and its log-prob under the distribution sampled from: (B,), (B,) float32.

    Temperature 0 takes the most probable token; its log-prob is that at temperature 1.
    """
    temperature = torch.tensor([row.request.temperature for row in rows], dtype=torch.float32)[:, None]
    greedy = temperature == 0
    logp = torch.log_softmax(logits.float() / temperature.masked_fill(greedy, 1.0), -1)
    top_p = torch.tensor([row.request.top_p for row in rows], dtype=torch.float32)[:, None]
    if bool((top_p < 1).any()):
        logp = nucleus(logp, top_p)
    total = logp.double().exp().cumsum(-1)
    uniform = torch.tensor([row.uniforms[min(position, len(row.uniforms) - 1)] for row in rows], dtype=torch.float64)
    drawn = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True).clamp_max(logp.shape[-1] - 1)
    tokens = torch.where(greedy, logp.argmax(-1, keepdim=True), drawn)
    return tokens[:, 0], logp.gather(-1, tokens)[:, 0]


def nucleus(logp: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Log-probs (B, V) renormalised over the smallest set of tokens whose mass reaches top_p (B, 1)."""
    ordered, order = logp.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    cut = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return torch.log_softmax(logp.masked_fill(cut, -torch.inf), -1)


def _row(index: int, request: Request) -> _Row:
    generator = np.random.Generator(np.random.Philox(key=request.seed))
    return _Row(index, request, generator.random(request.max_tokens))


def _empty_cache(policy: Policy) -> Cache:
    layer_types = getattr(policy.model.config, "layer_types", None) or ["full_attention"]
    if set(layer_types) == {"full_attention"}:
        return Cache(layer_class_to_replicate=GrowingLayer)
    return DynamicCache(config=policy.model.config)
