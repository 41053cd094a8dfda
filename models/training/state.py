"""A policy in training with its optimiser and random numbers.

A model that computes in bfloat16 has float32 master weights beside it, which the optimiser steps (Mixed Precision
Training, arXiv 1710.03740): bfloat16 keeps 8 bits of a weight, and most steps are smaller than that. Gradients are
summed over micro-batches in float32. Deviation: no loss scaling, which float16 needs and bfloat16 does not.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from gradus.models.training.lora import trained_parameters
from gradus.models.training.optimizers.making import Make, new_optimizer
from gradus.models.training.settings import StepConfig


class TrainState:
    """A policy in training: its model, its optimiser, its random numbers and the steps that the run has taken.

    The optimiser is new, of a function `make` if it is a user's; OptimizerError if it refuses its settings.
    `weights` are the float32 weights that a model in another number format was rounded from; None takes its own.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: StepConfig,
        seed: int,
        weights: Mapping[str, Tensor] | None = None,
        make: Make | None = None,
    ) -> None:
        self.model = model
        self.masters = _masters(model, weights)
        """The float32 weights that the optimiser steps, by name; the model's own where those are float32.

        All weights of the model, or the matrices of its LoRA layers if it has some.
        """
        self.optimizer = new_optimizer(settings, self.masters.values(), make)
        self.chosen = settings.optimizer
        """The settings with which the optimiser was chosen."""
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.step = 0
        self.ema_decay = 0.0
        self.average: dict[str, Tensor] = {}
        """Float32 moving average of the masters, by name; empty without decay."""

    def adopt(self, settings: StepConfig) -> None:
        """Continue with other settings, as a train state read from disk does; the optimiser must be the same one."""
        for group in self.optimizer.param_groups:
            given = {"betas": settings.betas, "weight_decay": settings.weight_decay}
            group.update({name: value for name, value in given.items() if name in group})
        self.ema_decay = settings.ema_decay
        if not self.ema_decay:
            self.average = {}
        elif not self.average:
            self.average = {name: master.detach().clone() for name, master in self.masters.items()}

    def zero_grad(self) -> None:
        """Drop all gradients, those that a failed backward pass left on the model too."""
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def advance(self) -> None:
        """Take the optimiser's step with the gradients of the masters, then move the average.

        average <- decay average + (1 - decay) masters, as the anchor of WARP (arXiv 2406.16768).
        """
        self.optimizer.step()
        self.write_back()
        for name, average in self.average.items():
            average.lerp_(self.masters[name].detach(), 1 - self.ema_decay)

    @contextmanager
    def averaged(self) -> Generator[None]:
        """Let the model have the average's weights for a while."""
        trained = trained_parameters(self.model)
        own = {name: parameter.detach().clone() for name, parameter in trained.items()}
        _set(trained, self.average)
        try:
            yield
        finally:
            _set(trained, own)

    def write_back(self) -> None:
        """Set the model's weights to the masters, rounded to its number format."""
        _set(trained_parameters(self.model), self.masters)


def _set(parameters: Mapping[str, Parameter], weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])  # of itself: nothing


def _masters(model: PreTrainedModel, weights: Mapping[str, Tensor] | None) -> dict[str, Parameter]:
    """The parameters that are trained, or float32 copies that take over their gradients."""
    own = trained_parameters(model)
    if all(parameter.dtype == torch.float32 for parameter in own.values()):
        return own
    given = own if weights is None else weights
    masters = {name: Parameter(given[name].detach().to(p.device, torch.float32)) for name, p in own.items()}
    for name, parameter in own.items():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, masters[name]))
    return masters


def _move_gradient(master: Parameter, parameter: Tensor) -> None:
    """Move a parameter's gradient to its master, added in float32 to the gradient there."""
    if parameter.grad is not None:
        found = master.grad
        master.grad = parameter.grad.to(torch.float32) if found is None else found.add_(parameter.grad)
        parameter.grad = None
