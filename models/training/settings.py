"""Settings of an update that its steps read, and those of its models; torch is not imported."""

import math
from functools import partial
from operator import eq
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradus.components.chosen import OptimizerConfig
from gradus.components.settings import MAX_ROWS, Config, empty, unset

FLOOR_FRAC = 0.1
"""Share of the peak that the decay ends at."""
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class CriticConfig(Config):
    """Training of a critic, if the advantage needs one (gae). It begins as a copy of the policy with a value head."""

    lr: float = Field(default=1e-5, gt=0.0)
    """AdamW learning rate, constant."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount of the targets, a token."""
    lam: float = Field(default=1.0, ge=0.0, le=1.0)
    """TD(lambda) of the targets: 1 learns the reward, 0 the next value."""
    clip: float = Field(default=0.5, gt=0.0)
    """Values move at most this far from those before the update."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""


class LoraConfig(Config):
    """A LoRA adapter that is trained in place of the policy's own weights (arXiv 2106.09685).

    It has no dropout, since the log-probs of an update must be those of the sampler. Ten times the learning rate of a
    full update and all linear layers are what learns as well as it does (LoRA Without Regret, 2025).
    """

    rank: int = Field(default=16, ge=1, le=100_000)
    """Columns of B and rows of A; policy gradients need few, 1 has been enough."""
    alpha: int = Field(default=32, ge=1, le=1_000_000)
    """B A is multiplied with alpha / rank."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The layers that are adapted: all linear ones but the output layer, or those of these names, such as q_proj."""
    quantize: Literal["none", "nf4"] = Field(default="none", exclude_if=partial(eq, "none"))
    """nf4 holds the base in 4 bits while the adapter is trained (QLoRA, arXiv 2305.14314), by bitsandbytes on one GPU.
    The sampler has the base's own weights, so a correction of importance weights is advisable."""

    @model_validator(mode="after")
    def _some_targets(self) -> "LoraConfig":
        if not self.targets:
            raise ValueError("targets is empty: name layers, or leave it out for all linear ones")
        return self


class StepConfig(Config):
    """Settings of the optimiser steps of an update."""

    optimizer: OptimizerConfig = Field(
        default_factory=OptimizerConfig.usual, exclude_if=lambda given: given == OptimizerConfig.usual()
    )
    """Optimiser: adamw; adamw_8bit, whose state is 8-bit (arXiv 2110.02861), by bitsandbytes; sgd; or your function."""
    lr: float = Field(default=5e-5, gt=0.0)
    """Learning rate after warm-up."""
    warmup_steps: int = Field(default=15, ge=0, le=MAX_ROWS)
    """Optimiser steps over which the learning rate rises linearly, counted over the whole run."""
    decay_steps: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Optimiser step of the run at which a cosine has brought the learning rate to a tenth; 0 keeps it constant."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Weight decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Betas of the optimiser, if it has two."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""
    epochs: int = Field(default=1, ge=1, le=10_000)
    """Passes over the rollouts."""
    minibatch_groups: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Groups per optimiser step; 0 takes all in one."""
    micro_tokens: int = Field(default=16_384, ge=1, le=MAX_ROWS)
    """Tokens that go through the model at once, a prompt once for its completions, padding included where rows are
    padded; the result does not depend on it beyond rounding."""
    activation_checkpointing: bool = Field(default=False, exclude_if=unset)
    """Keep the inputs of each layer alone and compute the layer again for its gradient: less memory, more time."""
    count_zero_std_groups: bool = Field(default=True, exclude_if=bool)
    """Count groups without variance in their rewards in the denominator of the loss."""
    max_kl: float | None = Field(default=None, gt=0.0, exclude_if=empty)
    """No further step is taken once KL(policy before the update || policy) of a step exceeds this, nats a token."""
    ema_decay: Beta = Field(default=0.0, exclude_if=empty)
    """Decay of a float32 moving average of the weights, moved at every optimiser step; 0 keeps none. It is a policy of
    its own in the checkpoint's folder `ema`."""


class FinetuneConfig(Config):
    """The steps of supervised fine-tuning."""

    steps: int = Field(default=800, ge=1, le=MAX_ROWS)
    """Optimiser steps."""
    decay_steps: int = Field(default=1200, ge=0, le=MAX_ROWS)
    """Step at which the learning rate has fallen to a tenth; 0 for `steps`."""
    batch_rows: int = Field(default=96, ge=1, le=MAX_ROWS)
    """Problems per step."""
    lr: float = Field(default=2e-3, gt=0.0)
    """AdamW learning rate after warm-up, then cosine to a tenth."""
    warmup_steps: int = Field(default=100, ge=0, le=MAX_ROWS)
    """Optimiser steps of linear warm-up."""


def learning_rate(step: int, *, lr: float, warmup_steps: int = 0, decay_steps: int = 0) -> float:
    """Linear warm-up to `lr`, then a cosine down to a tenth of it at `decay_steps`, constant after.

    `step` counts from 0 over the whole run; `decay_steps` 0 never decays. The cosine is SGDR's without restarts, arXiv
    1608.03983, eq. 5.

    >>> [learning_rate(step, lr=1.0, warmup_steps=4) for step in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    if step < warmup_steps:
        return lr * ((step + 1) / warmup_steps)
    if not decay_steps:
        return lr
    done = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    return lr * (FLOOR_FRAC + (1 - FLOOR_FRAC) * 0.5 * (1 + math.cos(math.pi * done)))
