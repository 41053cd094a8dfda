"""A probe: log-probs that an engine gives for a fixed text, held against those of the checkpoint itself.

It sees what checksums cannot: weights that an engine fused or repacked, or forgot to repack (vLLM 0.32 on a CPU keeps
the old output layer of a model with tied embeddings when it reloads), and a server's, which shows none.
"""

from collections.abc import Callable, Sequence

from gradus.models.engines.hf import HfEngine
from gradus.models.policy import Policy

NUM_TOKENS = 48
BOUNDS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""Largest mean absolute difference, nats a token, that rounding in this number format explains."""

Logprobs = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], list[list[float]]]


def hold_probe(policy: Policy, logprobs: Logprobs, bound: float) -> float:
    """Return the mean absolute difference, nats per token; raise ValueError if it is beyond the bound."""
    length = min(NUM_TOKENS, policy.prompt_side.context_tokens - 1)
    text = [number * 7919 % len(policy.tokenizer) for number in range(length)]
    given, expected = (ask([text[:1]], [text[1:]])[0] for ask in (logprobs, HfEngine(policy).logprobs))
    off = sum(abs(a - b) for a, b in zip(expected, given, strict=True)) / len(expected)
    if not off <= bound:
        raise ValueError(f"its log-probs of a probe text are {off:.4f} nats a token from the policy's")
    return off
