"""Activation checkpointing: layers keep their inputs alone and are computed again for the backward pass.

Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174), by transformers' layers and torch's checkpoint. Two
things are different here. transformers does it in training mode only, and an update runs in evaluation mode, since
dropout stays off; so each layer is in training mode only until it is called. And a pack's attention is set for the
forward pass alone (gradus.models.training.packed.forward); it is set again while a layer is computed again.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from gradus.models.training.packed.forward import attending, attention_of


def layers_of(model: PreTrainedModel) -> list[Any]:
    """The layers that can be computed again."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def recomputed(model: PreTrainedModel, *, wanted: bool = True) -> Generator[None]:
    """Compute the model's layers again in backward passes for a while, if wanted."""
    layers = layers_of(model) if wanted else []
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.gradient_checkpointing, layer.training = True, True
        layer._gradient_checkpointing_func = partial(_call, model, layer)  # noqa: SLF001 - transformers' own place for it
    try:
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.gradient_checkpointing, layer.training = False, training
            del layer._gradient_checkpointing_func  # noqa: SLF001


def _call(model: PreTrainedModel, layer: torch.nn.Module, run: Callable[..., Any], *args: Any) -> Any:
    attention = attention_of(model)

    def alike(*given: Any) -> Any:
        training, layer.training = layer.training, False
        try:
            with attending(model, attention):
                return run(*given)
        finally:
            layer.training = training

    if not torch.is_grad_enabled():
        return alike(*args)
    return checkpoint(alike, *args, use_reentrant=False, preserve_rng_state=False)
