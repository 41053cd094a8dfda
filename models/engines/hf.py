"""The embedded engine: our own decoding loop over a transformers model.

Requests with the same prompt share one prefill; requests of similar length share a batch, and finished rows are
removed from it. Each row's random numbers come from its own seed, one for each position, so they depend
on neither batch nor shard. (The logits themselves may differ in the last bits between batch shapes, as those of any
matrix product do; on a CPU the same requests in the same order give the same bits.)
On a GPU the model and the drawing are there, the bookkeeping here: each token of the batch is fetched once.

Left out: graph capture, without which a GPU waits for Python (vLLM is the engine for it), beam search, penalties,
structured output. Shapes: B rows, T positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor

from gradus.models.devices import is_out_of_memory
from gradus.models.engines.base import EngineError, Finished, FinishReason, OnTokens, Request
from gradus.models.engines.cache import empty_cache
from gradus.models.engines.sampling import SamplingParams, draw, stopped, tail_tokens
from gradus.models.policy import Policy

_NAME = f"transformers {version('transformers')}"  # read once: it costs milliseconds
COMPACT_FRAC = 1 / 32
"""Finished rows leave the batch once they are this share of it."""

PREFILL_TOKENS = 32_768
"""Prompt tokens, with padding, computed at once; a batch ends where its different prompts would exceed them."""
PROBE_TOKENS = 48
BOUNDS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""Largest mean absolute difference, nats a token, that rounding in this number format explains."""
Logprobs = Callable[[Sequence[int], Sequence[int]], list[float]]
"""Function of a prompt and a completion: log-probs of the completion's tokens, at temperature 1."""


class HfEngine:
    """Engine `transformers`, of a policy that is loaded.

    engine = HfEngine(policy)
    for finished in engine.generate([Request("a:0", (5, 9, 2), seed=17, max_tokens=96)]): ...
    """

    def __init__(self, policy: Policy, *, batch_rows: int = 512) -> None:
        self.policy = policy
        self.name = _NAME
        self.remarks: list[str] = []
        """Sentences about memory that ran out, each with the number of rows that it continued with."""
        self._batch_rows = batch_rows

    @property
    def reproducible(self) -> bool:
        """The same requests in the same order give the same bits, on one CPU with one number of threads.

        No longer once memory ran out, since how much there is decides the batches.
        """
        return self.policy.model.device.type == "cpu" and not self.remarks

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Sample every request once, shortest prompts first, `batch_rows` at a time, fewer where memory runs out.

        Raise EngineError if the model's probabilities are not finite, or one row alone does not fit.
        """
        sampled = 0
        waiting = batches([request.prompt_tokens for request in requests], self._batch_rows)[::-1]
        while waiting:
            indices = waiting.pop()
            left = set(indices)
            try:
                for step, num_sampled in self._steps(indices, requests):
                    sampled += num_sampled
                    for finished in step:
                        left.discard(finished.index)
                        yield finished
                    if on_tokens is not None:
                        on_tokens(sampled)
            except (RuntimeError, MemoryError) as error:
                waiting += self._halved([i for i in indices if i in left], len(indices), error)

    def _steps(self, indices: Sequence[int], requests: Sequence[Request]) -> Iterator[tuple[list[Finished], int]]:
        """One batch, token by token: what finished and how many were sampled; its memory goes when this frame does."""
        batch = _Batch(self.policy, indices, [requests[i] for i in indices])
        while len(batch.places):
            num_sampled = batch.num_alive
            yield batch.step(), num_sampled

    def _halved(self, left: list[int], num_rows: int, error: Exception) -> list[list[int]]:
        """Two batches of what an exhausted memory left undone, the first one last; any other error is raised again."""
        if isinstance(error, EngineError) or not is_out_of_memory(error):
            raise error
        if num_rows == 1:
            raise EngineError("one rollout alone does not fit into memory", "lower max_tokens") from None
        half = -(-num_rows // 2)
        self._batch_rows = min(self._batch_rows, half)
        self.remarks.append(f"out of memory with {num_rows} rollouts at once: continued with {half}")
        return [part for part in (left[half:], left[:half]) if part]

    @torch.inference_mode()
    def logprobs(self, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
        """Log-probs (nats, temperature 1) of given completion tokens after their prompt."""
        ids = torch.tensor([[*prompt, *completion]], device=self.policy.model.device)
        logits = self.policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])
        return chosen[:, 0].cpu().tolist()

    def close(self) -> None:
        """Nothing is held: the policy is its owner's."""


def batches(prompts: Sequence[tuple[int, ...]], batch_rows: int) -> list[list[int]]:
    """Request indices by prompt length, equal prompts together, in batches bounded in rows and in prefill tokens.

    >>> batches([(7, 8), (5,), (7, 8), (6,)], 3)
    [[1, 3, 0], [2]]
    """
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), prompts[i], i))
    found: list[list[int]] = []
    different: set[tuple[int, ...]] = set()
    for index in order:
        prompt = prompts[index]
        # In ascending order of length, so the newest prompt is the one that all others are padded to.
        fits = bool(found) and len(found[-1]) < batch_rows
        if fits and (prompt in different or (len(different) + 1) * len(prompt) <= PREFILL_TOKENS):
            found[-1].append(index)
        else:
            found.append([index])
            different = set()
        different.add(prompt)
    return found


def uniforms(seed: int, num_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The random numbers in [0, 1) of one completion, one for each position: a Philox counter keyed by its seed."""
    return np.random.Generator(np.random.Philox(key=seed)).random(num_tokens)


class _Forward:
    """The model's side of a batch, on its device: cache, mask (B, T), positions (B,), the next logits (B, V)."""

    def __init__(self, policy: Policy, prompts: Sequence[tuple[int, ...]]) -> None:
        """Compute each different prompt once (left-padded to the longest) and repeat its cache for its rows."""
        device = policy.model.device
        rows: dict[tuple[int, ...], int] = {}
        index = torch.tensor([rows.setdefault(prompt, len(rows)) for prompt in prompts], device=device)
        length = max(map(len, rows))
        pad = policy.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (length - len(p)) + list(p) for p in rows], device=device)
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in rows], device=device)
        self.policy = policy
        self.padded = min(map(len, rows)) < length
        self.cache = empty_cache(policy.model.config)
        out = policy.model(
            input_ids=ids,
            attention_mask=mask if self.padded else None,
            position_ids=(mask.cumsum(-1) - 1).clamp_min(0),
            past_key_values=self.cache,
            logits_to_keep=1,
        )
        self.cache.batch_select_indices(index)
        self.mask, self.positions = mask[index], mask[index].sum(-1)
        self.logits: Tensor = out.logits[index, -1]

    def select(self, index: Tensor) -> None:
        """Make row i what row index[i] was."""
        index = index.to(self.positions.device)
        self.cache.batch_select_indices(index)
        self.mask, self.positions = self.mask[index], self.positions[index]

    def advance(self, tokens: Tensor) -> None:
        """Feed one token a row (B,) and take the logits that follow it."""
        tokens = tokens.to(self.positions.device)
        if self.padded:
            self.mask = torch.cat([self.mask, self.mask.new_ones((len(tokens), 1))], -1)
        out = self.policy.model(
            input_ids=tokens[:, None],
            attention_mask=self.mask if self.padded else None,
            position_ids=self.positions[:, None],
            past_key_values=self.cache,
        )
        self.positions = self.positions + 1
        self.logits = out.logits[:, -1]


class _Batch:
    """Unfinished completions, kept on the CPU. Rows move as others leave; `places` (B,) says where results go."""

    @torch.inference_mode()
    def __init__(self, policy: Policy, indices: Sequence[int], requests: Sequence[Request]) -> None:
        """Prefill the prompts; results are (T, B), since one position of all rows is written at a time."""
        limits = [request.max_tokens for request in requests]
        shape = (max(limits), len(requests))
        numbers = np.zeros(shape)
        for place, request in enumerate(requests):
            numbers[: request.max_tokens, place] = uniforms(request.seed, request.max_tokens)
        self.indices = indices
        self.forward = _Forward(policy, [request.prompt_tokens for request in requests])
        self.how = SamplingParams(
            torch.tensor([[request.temperature] for request in requests], dtype=torch.float32),
            torch.tensor([[request.top_p] for request in requests], dtype=torch.float64),
            torch.tensor([[request.top_k] for request in requests]),
        )
        self.limits = torch.tensor(limits)
        self.uniforms = torch.from_numpy(numbers)
        self.ends = torch.tensor(policy.end_tokens)
        self.places = torch.arange(len(requests))
        self.alive = torch.ones(len(requests), dtype=torch.bool)
        self.tokens = torch.zeros(shape, dtype=torch.long)
        self.logprobs = torch.zeros(shape)
        self.stops = [request.stop for request in requests]
        self.position = 0

    @property
    def num_alive(self) -> int:
        """Rows that still grow."""
        return int(self.alive.sum())

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Sample one token for every row; the completions that it ended."""
        tokens, logprobs = draw(self.forward.logits, self.how, self.uniforms[self.position, self.places])
        if not bool(torch.isfinite(logprobs).all()):
            raise EngineError("the policy's probabilities are not finite: its weights are broken, or it overflows")
        self.tokens[self.position, self.places] = tokens
        self.logprobs[self.position, self.places] = logprobs
        self.position += 1
        complete = torch.isin(tokens, self.ends) | self._at_stop_strings()
        ended = (complete | (self.limits <= self.position)) & self.alive
        finished: list[Finished] = []
        if bool(ended.any()):
            rows = ended.nonzero()[:, 0].tolist()
            finished = [self._finished(row, "stop" if complete[row] else "length") for row in rows]
            self.alive &= ~ended
            tokens = self._compact(tokens)
        if len(tokens):
            self.forward.advance(tokens)
        return finished

    def _at_stop_strings(self) -> Tensor:
        """Bool (B,): growing rows that have just completed one of their stop strings."""
        found = torch.zeros(len(self.places), dtype=torch.bool)
        placed = zip(self.places.tolist(), self.alive.tolist(), strict=True) if any(self.stops) else ()
        rows = [row for row, (place, alive) in enumerate(placed) if alive and self.stops[place]]
        if not rows:
            return found
        places = self.places[rows]
        stops = [self.stops[place] for place in places.tolist()]
        start = max(0, self.position - max(map(tail_tokens, set(stops))))
        tails = self.tokens[start : self.position, places].T.tolist()
        found[rows] = torch.tensor(stopped(self.forward.policy.tokenizer, tails, stops), dtype=torch.bool)
        return found

    def _finished(self, row: int, reason: FinishReason) -> Finished:
        place = int(self.places[row])
        tokens, logprobs = (each[: self.position, place].tolist() for each in (self.tokens, self.logprobs))
        return Finished(self.indices[place], tokens, logprobs, reason)

    def _compact(self, tokens: Tensor) -> Tensor:
        """Let finished rows leave, if they are enough, and fill their places with rows from the end."""
        rows, alive = len(tokens), self.num_alive
        if alive and rows - alive < COMPACT_FRAC * rows:
            return tokens
        index = torch.arange(alive)
        index[~self.alive[:alive]] = torch.arange(alive, rows)[self.alive[alive:]]
        if alive:
            self.forward.select(index)
        self.how, self.limits, self.places = self.how.select(index), self.limits[index], self.places[index]
        self.alive = self.alive[index]
        return tokens[index]


def hold_probe(policy: Policy, logprobs: Logprobs, bound: float) -> float:
    """Compare an engine's log-probs of a fixed text with the policy's own; return their difference.

    That is the mean absolute one, nats per token; ValueError if it is beyond the bound. It sees what checksums cannot:
    weights that an engine fused or repacked, or forgot to repack (vLLM 0.32 on a CPU keeps the old output layer of a
    model with tied embeddings when it reloads), and a server's, which shows none.
    """
    length = min(PROBE_TOKENS, policy.prompt_side.context_tokens - 1)
    text = [number * 7919 % len(policy.tokenizer) for number in range(length)]
    given, expected = (ask(text[:1], text[1:]) for ask in (logprobs, HfEngine(policy).logprobs))
    off = sum(abs(a - b) for a, b in zip(expected, given, strict=True)) / len(expected)
    if not off <= bound:
        raise ValueError(f"its log-probs of a probe text are {off:.4f} nats a token from the policy's")
    return off
