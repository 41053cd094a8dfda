"""The policy update: judged rollouts in, optimiser steps out. Deterministic for a batch, a train state and settings.

One pass: rows -> minibatches of whole groups -> steps (gradus.models.training.steps). Dropout stays off: the log-probs
of the update must be those of the policy that sampled.
The ratio's denominator: with one optimiser step the policy's own log-probs (ratio 1, exactly on-policy); with several,
those of the policy before the first one, recomputed by the trainer, so that sampler and trainer numerics do not mix.
"""

from collections.abc import Callable, Generator, Sequence

import numpy as np
import torch
from torch import Tensor

from gradus.models.objectives.objective import Objective
from gradus.models.objectives.rows import Rows, all_finite
from gradus.models.training.packed.forward import form_of
from gradus.models.training.passes import Budget, OnRows, unobserved
from gradus.models.training.recomputation import recomputed
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.steps.step import Step, StepResult


def planned_steps(
    rows: Rows, objective: Objective, settings: StepConfig, rng: np.random.Generator
) -> tuple[Tensor, ...]:
    """Return the rows of each optimiser step, (N_step,) int64 each and ascending, decided before the first.

    Whole groups, shuffled anew for each epoch, `minibatch_groups` to a step (0: all in one). A step that nothing could
    be learnt from is left out: AdamW would move by momentum alone. The only step is taken by the policy that sampled.
    """
    group = rows["group"].numpy()
    learnable = objective.may_learn(rows).numpy()
    groups = np.unique(group)
    size = settings.minibatch_groups or len(groups)
    steps: list[Tensor] = []
    for _ in range(settings.epochs):
        order = rng.permutation(groups)
        for start in range(0, len(order), size):
            chosen = np.isin(group, order[start : start + size])
            if learnable[chosen].any():
                steps.append(torch.from_numpy(np.flatnonzero(chosen)))
    return tuple(steps)


def optimise(
    train_state: TrainState,
    rows: Rows,
    steps: Sequence[Tensor],
    objective: Objective,
    settings: StepConfig,
    *,
    check: Callable[[Tensor, Tensor], None] = lambda _rows, _logp: None,
    on_rows: OnRows = unobserved,
    budget: Budget | None = None,
    critic: Critic | None = None,
) -> Generator[StepResult]:
    """Take planned steps, one a result; raise UpdateError if a loss or gradient is not finite.

    The rows have their advantages (`Objective.with_advantages`) and what other models say of their tokens: "old.logp"
    unless one step is planned, "reference.logp", "reference.mean_logp", "teacher.ids", "teacher.top", "critic.value".
    With one planned step `check` is called between the gradient and the step, with the rows and the policy's log-probs
    of their tokens; otherwise the caller has the old log-probs and looks at them first. After a step whose
    KL(old || policy) exceeds `settings.max_kl` no further one is taken. A critic is trained in the same steps.
    """
    budget = budget or Budget(settings.micro_tokens)
    form = form_of(train_state.model)
    counted = rows.adding(mask=_counted(rows, objective))
    for chosen in steps:
        step = Step(train_state, counted.select(chosen), objective, settings, form, budget, critic, on_rows)
        with recomputed(train_state.model, wanted=settings.activation_checkpointing):
            result = step.take(chosen, check)
        yield result
        if settings.max_kl is not None and result.metrics["policy/kl_old"] > settings.max_kl:
            return


def _counted(rows: Rows, objective: Objective) -> Tensor:
    """(T,) bool: tokens that carry loss, whose log-probs are all finite, the sampler's where a term needs it.

    The others are left out of loss and denominators.
    """
    found = torch.isfinite(rows["sampler.logp"]) | ~objective.needs_sampler(rows)[rows.row]
    known = [rows[name] for name in ("old.logp", "reference.logp") if name in rows]
    if known:
        found &= all_finite(*known)
    return found & rows["trained"] if "trained" in rows else found
