"""Optimisers that step every number by itself: AdamW, in 32 and in 8 bits, and SGD."""

from importlib import import_module
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch.nn import Parameter
from torch.optim import Optimizer

from gradus.components import component
from gradus.models.training.settings import StepConfig


@component("optimizer", paper="arXiv 1711.05101", elementwise=True)
def adamw(
    parameters: list[Parameter], update: StepConfig, *, eps: Annotated[float, Gt(0.0)] = 1e-8, amsgrad: bool = False
) -> Optimizer:
    """AdamW: decoupled weight decay.

    It is fused on a GPU. On a CPU it is not: the fused kernel rounds otherwise and was 3 ms faster for the bundled
    policy, of a step of a second and more.

    Args:
        eps: Added to the root of the second moment.
        amsgrad: True if the second moment is the largest so far (arXiv 1904.09237).
    """
    fused = {"fused": True} if parameters[0].device.type == "cuda" else {}
    return torch.optim.AdamW(
        parameters,
        lr=update.lr,
        betas=update.betas,
        weight_decay=update.weight_decay,
        eps=eps,
        amsgrad=amsgrad,
        **fused,
    )


@component("optimizer", paper="arXiv 2110.02861", libraries=("bitsandbytes",))
def adamw_8bit(parameters: list[Parameter], update: StepConfig, *, eps: Annotated[float, Gt(0.0)] = 1e-8) -> Optimizer:
    """AdamW with a state of 8 bits: 8-bit Optimizers via Block-wise Quantization, by bitsandbytes.

    Args:
        eps: Added to the root of the second moment.
    """
    kind = import_module("bitsandbytes.optim").AdamW8bit
    return kind(parameters, lr=update.lr, betas=update.betas, weight_decay=update.weight_decay, eps=eps)


@component("optimizer", elementwise=True)
def sgd(
    parameters: list[Parameter],
    update: StepConfig,
    *,
    momentum: Annotated[float, Ge(0.0)] = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """SGD, with momentum if asked for.

    Args:
        momentum: Share of the last step that is taken again.
        dampening: Share of the gradient that momentum leaves out.
        nesterov: True if the gradient is that after the momentum's step.
    """
    if update.betas != StepConfig.model_fields["betas"].default:
        raise ValueError("it takes no betas: leave update.betas out")
    return torch.optim.SGD(
        parameters,
        lr=update.lr,
        weight_decay=update.weight_decay,
        momentum=momentum,
        dampening=dampening,
        nesterov=nesterov,
    )
