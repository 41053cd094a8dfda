"""An optimiser step that is taken back: what it did to the log-probs of rows that it did not see."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from gradus.models.objectives.rows import Rows
from gradus.models.training.parallel.sharding import clip_gradients
from gradus.models.training.passes import Budget, OnRows, all_tokens, unobserved
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState


class Moved(NamedTuple):
    """Change of the log-probs of held-out completions by a step, nats a completion; NaN without such rows."""

    right: float
    """Mean over right completions."""
    wrong: float
    """Mean over the others."""
    gain: float
    """Mean over all of (reward - mean reward of the row's group) x change: to first order by how much the step raises
    the mean reward of these problems, since d E[R] = E[R d log p], whatever is subtracted from R for a problem."""


@contextmanager
def stepped(train_state: TrainState, settings: StepConfig) -> Generator[None]:
    """Let the model have the weights that one step of the optimiser, with the gradients there, leads to.

    The optimiser is as it is, a new one without a history; its learning rate is that of `settings` without warm-up.
    """
    before = {name: master.detach().clone() for name, master in train_state.masters.items()}
    clip_gradients(train_state.masters.values(), settings.max_grad_norm)
    for group in train_state.optimizer.param_groups:
        group["lr"] = settings.lr
    train_state.optimizer.step()
    train_state.write_back()
    try:
        yield
    finally:
        with torch.no_grad():
            for name, master in train_state.masters.items():
                master.copy_(before[name])
        train_state.write_back()


def moved(
    train_state: TrainState,
    settings: StepConfig,
    held_out: Rows,
    before: Tensor,
    budget: Budget,
    on_rows: OnRows = unobserved,
) -> Moved:
    """Return the change of the log-probs of held-out rows, `before` (M,), by a step that is taken back."""
    with stepped(train_state, settings):
        after = all_tokens(train_state.model, held_out, budget, on_rows).logp
    change = held_out.row_sum((after - before).double())
    right = held_out["correct"] == 1
    above = held_out["reward"] - held_out.by("group").mean(held_out["reward"])
    return Moved(float(change[right].mean()), float(change[~right].mean()), float((above * change).mean()))
