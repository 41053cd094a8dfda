"""What an update works on: a policy in training with its optimiser and random numbers, rollouts, settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.engines.sampling import SamplingParams
from gradus.models.objectives.aggregations import Aggregation
from gradus.models.objectives.aggregations.means import token_mean
from gradus.models.objectives.importance_sampling import ImportanceWeights
from gradus.models.objectives.losses import Loss
from gradus.models.objectives.losses.clipped import clip
from gradus.models.training.logprobs import Sequences, TokenIds


@dataclass(frozen=True)
class UpdateSettings:
    """The arguments of an update, components with settings bound; gradus.tasks.config.learning says what each is."""

    loss: Loss = clip
    aggregation: Aggregation = token_mean
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    correction: ImportanceWeights | None = None
    """None weighs every token alike."""
    lr: float = 5e-5
    warmup_steps: int = 0
    decay_steps: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    epochs: int = 1
    minibatch_groups: int = 0
    micro_tokens: int = 16_384


@dataclass
class TrainState:
    """A policy in training: its model, its optimiser, its random numbers and the steps that the run has taken."""

    model: PreTrainedModel
    optimizer: torch.optim.AdamW
    rng: np.random.Generator
    step: int = 0

    @classmethod
    def new(cls, model: PreTrainedModel, settings: UpdateSettings, seed: int) -> "TrainState":
        """Return a train state with a fresh optimiser."""
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        )
        return cls(model, optimizer, np.random.Generator(np.random.PCG64(seed)))

    def adopt(self, settings: UpdateSettings) -> None:
        """Continue with other settings, as a train state read from disk does; the learning rate is set at each step."""
        for group in self.optimizer.param_groups:
            group.update(betas=settings.betas, weight_decay=settings.weight_decay)


@dataclass(frozen=True)
class Rollouts:
    """The rows that an update learns from; N rows, lists of token ids ragged."""

    prompts: Sequence[TokenIds]
    completions: Sequence[TokenIds]
    logprobs: Sequence[Tensor]
    """The sampler's log-probs, nats, one (length,) float32 tensor a row."""
    temperature: Tensor
    """(N,) float32 sampling temperature."""
    advantage: Tensor
    """(N,) float64."""
    group: Tensor
    """(N,) int64."""
    drawn: SamplingParams | None = None
    """How the N rows were drawn, where the trainer's side of every comparison with the sampler is truncated like it;
    None compares with the full softmax."""

    def __post_init__(self) -> None:
        """Raise ValueError if a row has another number of log-probs than of completion tokens."""
        for row, (tokens, logprobs) in enumerate(zip(self.completions, self.logprobs, strict=True)):
            if len(tokens) != len(logprobs):
                raise ValueError(f"row {row} has {len(tokens)} completion tokens and {len(logprobs)} log-probs")

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.completions)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row, prompt and completion."""
        return [len(p) + len(c) for p, c in zip(self.prompts, self.completions, strict=True)]

    def sequences(self, rows: Sequence[int]) -> Sequences:
        """Return the rows as a batch for a forward pass."""
        return Sequences([self.prompts[i] for i in rows], [self.completions[i] for i in rows])

    def drawing(self, rows: Sequence[int]) -> SamplingParams | None:
        """Return the sampling parameters of the rows."""
        return None if self.drawn is None else self.drawn.select(torch.tensor(list(rows)))

    def token_rows(self, rows: Sequence[int]) -> Tensor:
        """Return the row number of every completion token of the rows, (M,) int64."""
        sizes = torch.tensor([len(self.completions[i]) for i in rows])
        return torch.repeat_interleave(torch.tensor(list(rows)), sizes)

    def sampler(self, rows: Sequence[int]) -> Tensor:
        """Return the sampler's log-prob of every completion token of the rows, (M,)."""
        return torch.cat([self.logprobs[i] for i in rows])
