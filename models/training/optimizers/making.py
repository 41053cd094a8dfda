"""Optimisers by name, and their state as named tensors whatever the optimiser keeps.

optimizer = new_optimizer(StepConfig(), masters.values())
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gradus.components.registry import function_of
from gradus.models.training.parallel import divided
from gradus.models.training.settings import StepConfig

Entry = dict[str, Any]
"""State that an optimiser keeps of one parameter."""
Make = Callable[[list[Parameter], StepConfig], Optimizer]


class OptimizerError(ValueError):
    """Settings that an optimiser refuses."""


def new_optimizer(settings: StepConfig, parameters: Iterable[Parameter], make: Make | None = None) -> Optimizer:
    """Return the optimiser that settings name, of a function `make` if it is a user's; OptimizerError if it refuses."""
    chosen = settings.optimizer
    made = make or partial(function_of(chosen.component), **chosen.settings)
    try:
        return made(list(parameters), settings)
    except (TypeError, ValueError) as error:
        raise OptimizerError(f"the optimizer {chosen.label} refuses its settings: {error}") from None


def blank_state(optimizer: Optimizer) -> dict[Parameter, Entry]:
    """Return the state of the optimiser after a step by nothing, so that its keys and shapes are known.

    Parameters, and what the optimiser keeps, are left as they are; gradients are dropped.
    """
    kept, rates = optimizer.state, [group["lr"] for group in optimizer.param_groups]
    given: list[Parameter] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state = defaultdict(dict)
    optimizer.zero_grad(set_to_none=True)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    try:
        for parameter in given:  # one at a time: no gradient of the whole model is held
            parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            parameter.grad = None
        return {parameter: dict(optimizer.state[parameter]) for parameter in given}
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state = kept
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def as_tensors(entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of a parameter as tensors; numbers become tensors without dimensions."""
    kept = {key: value for key, value in entry.items() if value is not None}
    doubles = {key: torch.float64 for key, value in kept.items() if type(value) is float}
    return {key: torch.as_tensor(value, dtype=doubles.get(key)).detach() for key, value in kept.items()}


def as_kept(tensors: Mapping[str, Tensor], blank: Entry) -> Entry:
    """Tensors of a file in the form, and on the device, that the optimiser keeps them in: those of `blank`, filled."""
    entry: Entry = {}
    for key, value in blank.items():
        if isinstance(value, Tensor):
            entry[key] = value.copy_(divided(tensors[key], value))
        else:
            entry[key] = None if value is None else tensors[key].item()
    return entry
