"""What an update works on: a policy in training with its optimiser and random numbers, rollouts, settings."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.components import Need
from gradus.models.engines.sampling import SamplingParams
from gradus.models.objectives.advantages import StepAdvantage
from gradus.models.objectives.aggregations import Aggregation
from gradus.models.objectives.aggregations.means import token_mean
from gradus.models.objectives.importance_sampling import ImportanceWeights
from gradus.models.objectives.losses import Loss
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.token_weights import TokenWeights
from gradus.models.training.forward import Form
from gradus.models.training.packing import Pack, pack_of, packs, padded_batches
from gradus.models.training.ragged import Ragged, distinct


@dataclass(frozen=True)
class UpdateSettings:
    """The arguments of an update, components with settings bound; gradus.tasks.config.learning says what each is."""

    loss: Loss = clip
    aggregation: Aggregation = token_mean
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    correction: ImportanceWeights | None = None
    """None weighs every token alike."""
    weights: tuple[TokenWeights, ...] = ()
    step_advantage: StepAdvantage | None = None
    """Makes the advantages anew for every step; None takes those of the rollouts."""
    needs: frozenset[Need] = frozenset()
    """What these components read of every token of a step."""
    acts_without_advantage: bool = False
    """Whether the loss has a gradient where the advantage is 0."""
    count_zero_std_groups: bool = True
    max_kl: float | None = None
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
    """The rows that an update learns from: N rows, T completion tokens end to end."""

    prompts: Ragged
    """N lists of token ids, none empty."""
    completions: Ragged
    """N lists of token ids, T in all."""
    logprobs: Tensor
    """(T,) float32: the sampler's log-probs, nats."""
    temperature: Tensor
    """(N,) float32 sampling temperature."""
    advantage: Tensor
    """(N,) float64; 0 where every step makes its own."""
    group: Tensor
    """(N,) int64."""
    reward: Tensor
    """(N,) float64."""
    correct: Tensor
    """(N,) float64: 1 right, 0 wrong, NaN unknown."""
    drawn: SamplingParams | None = None
    """How the N rows were drawn, where the trainer's side of every comparison with the sampler is truncated like it;
    None compares with the full softmax."""

    def __post_init__(self) -> None:
        """Raise ValueError if there are not as many log-probs as completion tokens."""
        if len(self.logprobs) != len(self.completions.values):
            raise ValueError(f"{len(self.completions.values)} completion tokens have {len(self.logprobs)} log-probs")

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.completions)

    @cached_property
    def prompt(self) -> Tensor:
        """(N,) int64: the number of each row's prompt, equal prompts alike."""
        return distinct(self.prompts)

    def packs(self, rows: Tensor, form: Form, budget_tokens: int) -> list[Pack]:
        """Divide rows into forward passes of at most `budget_tokens`, padding included where rows are padded."""
        prompt_tokens, completion_tokens = self.prompts.lengths[rows], self.completions.lengths[rows]
        if form == "packed":
            divided = packs(self.prompt[rows], prompt_tokens, completion_tokens, budget_tokens)
        else:
            divided = padded_batches(prompt_tokens + completion_tokens, budget_tokens)
        return [pack_of(rows[part], self.prompt, self.prompts, self.completions) for part in divided]

    def drawing(self, rows: Tensor) -> SamplingParams | None:
        """Return the sampling parameters of the rows."""
        return None if self.drawn is None else self.drawn.select(rows)
