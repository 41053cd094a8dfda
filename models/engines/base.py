"""Interface of every engine: finished rollouts for requests, in any order.

A new engine is one class with these methods; everything around it (shards, seeds, gates, resuming) stays as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "error"]

OnTokens = Callable[[int], None]
"""Called while an engine works, at least once for every step of a batch, with the tokens sampled so far."""


class EngineError(RuntimeError):
    """An engine that cannot continue; the sentence says why, the hint what to do."""

    def __init__(self, message: str, hint: str = "sample from an earlier checkpoint") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Request:
    """One completion to sample; `seed` alone decides its random numbers.

    Request("00aa11bb22cc33dd:p1@r0h0:3", (5, 9, 2), seed=17, max_tokens=96, temperature=1.0, top_p=1.0)
    """

    rollout_id: str
    prompt_tokens: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Most probable tokens sampled from; 0 for all."""
    messages: tuple[Mapping[str, str], ...] = ()
    """The prompt as chat messages, for engines that take no token ids."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the token that completes one is its last."""


@dataclass(frozen=True)
class Finished:
    """One sampled completion: token ids with the end token, and each token's log-prob (nats) as sampled from.

    `index` is the place of its request in the sequence given to `generate`. A request that failed by itself, while the
    engine continues, comes back with `finish_reason` "error" and the reason in `error`.
    """

    index: int
    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    error: str = ""
    text: str | None = None
    """The sampled text, from an engine that returns neither tokens nor log-probs."""


class Engine(Protocol):
    """Samples completions from one policy at a time."""

    @property
    def name(self) -> str:
        """Name and version, as the rollouts' column `engine` has it."""
        ...

    @property
    def reproducible(self) -> bool:
        """True if the same requests in the same order give the same bits; if not, only their seeds are the same."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Return the engine's deviations from its settings, a sentence each."""
        ...

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Sample every request once, in any order."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
