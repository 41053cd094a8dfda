"""The policy update: judged rollouts in, optimiser steps out. Deterministic for a batch, a train state and settings.

One pass: rows -> minibatches of whole groups -> steps (gradus.models.training.steps). Dropout stays off: the log-probs
of the update must be those of the policy that sampled.
The ratio's denominator: with one optimiser step the policy's own log-probs (ratio 1, exactly on-policy); with several,
those of the policy before the first one, recomputed by the trainer, so that sampler and trainer numerics do not mix.
Truncated sampling (top-k, top-p): what is held against the sampler's log-probs, the correction's weight and `mismatch`,
is the trainer's log-prob as drawn; the loss and its ratio are of the full softmax on both sides, as in the systems that
truncate nothing. Deviation: DeepSeek-V3.2 (arXiv 2512.02556, Keep Sampling Mask) truncates the loss's ratio too, by the
sampler's own sets of tokens, and so learns the truncated policy p / S: its gradient has -A grad log S more. Rollouts do
not record those sets; by the train state's own, a token that it has pushed out could never come back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradus.models.training.packed.forward import form_of
from gradus.models.training.passes import Budget
from gradus.models.training.recomputation import recomputed
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.steps.step import Hooks, Metrics, Step
from gradus.models.training.steps.step_rows import ReferenceLogprobs, StepRows, acting_origins


@dataclass(frozen=True)
class StepPlan:
    """The optimiser steps of one update: the rows of each, decided before the first."""

    steps: tuple[Tensor, ...]
    """(N_step,) int64 each: row numbers, ascending."""

    @property
    def on_policy(self) -> bool:
        """Whether the only step is taken by the policy that sampled."""
        return len(self.steps) == 1

    @classmethod
    def of(cls, rollouts: Rollouts, settings: UpdateSettings, rng: np.random.Generator) -> "StepPlan":
        """Whole groups, shuffled anew for each epoch, `minibatch_groups` to a step (0: all in one).

        A step that nothing could be learnt from is left out: AdamW would move by momentum alone.
        """
        group = rollouts.group.numpy()
        learnable = ~zero_gradient_rows(rollouts, settings)
        groups = np.unique(group)
        size = settings.minibatch_groups or len(groups)
        steps: list[Tensor] = []
        for _ in range(settings.epochs):
            order = rng.permutation(groups)
            for start in range(0, len(order), size):
                chosen = np.isin(group, order[start : start + size])
                if learnable[chosen].any():
                    steps.append(torch.from_numpy(np.flatnonzero(chosen)))
        return cls(tuple(steps))


def optimise(
    train_state: TrainState,
    rollouts: Rollouts,
    plan: StepPlan,
    settings: UpdateSettings,
    references: ReferenceLogprobs,
    hooks: Hooks,
    taken: Sequence[Metrics] = (),
    *,
    budget: Budget | None = None,
    critic: Critic | None = None,
) -> None:
    """Take the steps of a plan that were not taken; raise UpdateError if a loss or gradient is not finite.

    `taken` holds the metrics of the steps before. With an on-policy plan `hooks.before` is called here, between the
    gradient and the step; otherwise the caller has the old log-probs and looks at them first. After a step whose
    KL(old || policy) exceeds `settings.max_kl` no further one is taken. A critic is trained in the same steps.
    """
    budget = budget or Budget(settings.micro_tokens)
    form = form_of(train_state.model)
    kl = taken[-1]["policy/kl_old"] if taken else 0.0
    for index in range(len(taken), len(plan.steps)):
        if settings.max_kl is not None and kl > settings.max_kl:
            return
        about = StepRows(rollouts, plan.steps[index], settings, references)
        with recomputed(train_state.model, wanted=settings.activation_checkpointing):
            metrics = Step(train_state, about, hooks, form, budget, critic).take()
        kl = metrics["policy/kl_old"]
        hooks.on_step(index, metrics)


def zero_gradient_rows(rollouts: Rollouts, settings: UpdateSettings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Bool (N,): rows whose gradient is exactly zero for certain: their advantage is, and nothing else acts."""
    if settings.step_advantage is not None:
        return np.zeros(rollouts.num_rows, dtype=np.bool_)
    return ((rollouts.advantage == 0) & ~acting_rows(rollouts, settings)).numpy()


def acting_rows(rollouts: Rollouts, settings: UpdateSettings) -> Tensor:
    """Return which rows have a gradient without an advantage, (N,) bool: what their objective declares."""
    acting = acting_origins(settings)
    return acting[0].repeat(rollouts.num_rows) if rollouts.origin is None else acting[rollouts.origin]
