"""Activation checkpointing: the same gradients, fewer tensors kept, nothing left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.policy import load_policy
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.logprobs import token_logprobs
from gradus.models.training.packed.packing import Pack, pack_of
from gradus.models.training.recomputation import layers_of, recomputed
from tests.models.training.packed.test_logprobs import tiny

BUNDLED = Path(__file__).parents[3] / "data" / "samples" / "policy"


def pack() -> Pack:
    """Six rows: a prompt of four completions, and two of one."""
    prompts = Ragged.of([[3, 4, 5, 6]] * 4 + [[7], [8, 9]])
    completions = Ragged.of([[10 + (3 * i + k) % 9 for k in range(2 + i)] for i in range(6)])
    return pack_of(torch.arange(6), distinct(prompts), prompts, completions)


def gradients(model: PreTrainedModel, form: Form, *, wanted: bool) -> tuple[list[Tensor], int]:
    """Gradients of a sum of log-probs, and the bytes that the forward pass kept for them, each tensor once."""
    sizes: dict[int, int] = {}

    def kept(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    model.zero_grad()
    with recomputed(model, wanted=wanted), torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        total = token_logprobs(model, pack(), torch.ones(6), form).logp.sum()
        weights = {parameter.data_ptr() for parameter in model.parameters()}
        held = sum(size for pointer, size in sizes.items() if pointer not in weights)
        total.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None], held


@pytest.mark.parametrize("form", ["packed", "padded"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_the_bundled_policy_are_equal_and_fewer_tensors_are_kept(form: Form, dtype: Any) -> None:
    model = load_policy(BUNDLED, dtype).model
    plain, held = gradients(model, form, wanted=False)
    again, less = gradients(model, form, wanted=True)
    assert len(plain) == len(again) == len(list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert any(one.abs().max() > 0 for one in plain)
    assert less < held / 3


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "granite"])
def test_gradients_of_other_architectures_are_equal(name: str) -> None:
    """GPT-2 has dropout, which must stay off when a layer is computed again."""
    model = tiny(name)
    plain, again = (gradients(model, "packed", wanted=wanted)[0] for wanted in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


def test_a_layer_keeps_its_dropout_off() -> None:
    model = tiny("gpt2")
    seen: list[bool] = []
    original: Callable[..., Any] = type(model.transformer.h[0]).forward

    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(layer.training)
        return original(layer, *args, **kwargs)

    for layer in layers_of(model):
        layer.forward = forward.__get__(layer)
    gradients(model, "packed", wanted=True)
    assert seen == [False] * 4  # two layers, each computed twice


def test_the_model_is_left_as_it_was() -> None:
    model = tiny()
    attention = model.config._attn_implementation
    with recomputed(model):
        assert all(layer.gradient_checkpointing for layer in layers_of(model))
    assert not any(layer.training or layer.gradient_checkpointing for layer in layers_of(model))
    gradients(model, "packed", wanted=True)
    assert model.config._attn_implementation == attention
    assert not model.training


def test_without_gradient_nothing_is_kept_or_computed_again() -> None:
    model = tiny()
    with torch.no_grad():
        expected = token_logprobs(model, pack(), torch.ones(6), "packed").logp
        with recomputed(model):
            found = token_logprobs(model, pack(), torch.ones(6), "packed").logp
    assert torch.equal(found, expected)
    assert not found.requires_grad
