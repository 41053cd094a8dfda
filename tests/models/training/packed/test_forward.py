"""End to end with shared prompts, or padded: the same hidden states and gradients; which models take which form."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, MambaConfig, MistralConfig, PreTrainedConfig, PreTrainedModel

import gradus.models.training.packed.trees
from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.training.packed.forward import Form, UnsupportedAttentionError, form_of, hidden_states
from gradus.models.training.packed.packing import Pack, pack_of
from tests.models.training.packed.test_logprobs import CONFIGS, SIZES, tiny

rows = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 28), max_size=9)), min_size=1, max_size=12).filter(
    lambda given: any(completion for _, completion in given)
)
prompt_lists = st.lists(st.lists(st.integers(0, 28), min_size=1, max_size=12), min_size=4, max_size=4)


def pack(prompts: list[list[int]], drawn: list[tuple[int, list[int]]]) -> Pack:
    chosen = Ragged.of([prompts[i] for i, _ in sorted(drawn, key=lambda row: prompts[row[0]])])
    completions = Ragged.of([completion for _, completion in sorted(drawn, key=lambda row: prompts[row[0]])])
    return pack_of(torch.arange(len(chosen)), distinct(chosen), chosen, completions)


def gradients(model: PreTrainedModel, given: Pack, form: Form) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    hidden = hidden_states(model, given, form)
    weights = torch.linspace(-1.0, 1.0, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
    (hidden * weights).sum().backward()
    return hidden.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@given(prompt_lists, rows)
@settings(max_examples=20)
def test_both_forms_have_the_same_values_and_gradients(
    prompts: list[list[int]], drawn: list[tuple[int, list[int]]]
) -> None:
    model = tiny("qwen2").double()
    given_rows = pack(prompts, drawn)
    for found, expected in zip(*(gradients(model, given_rows, form) for form in ("packed", "padded")), strict=True):
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


FOUR = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 40), st.integers(0, 3))
BRANCHING = given(st.lists(FOUR, max_size=12), st.integers(1, 9))


def branching_pack(drawn: list[tuple[int, int, int, int]], min_shared: int) -> Pack:
    """Return a pack whose rows begin alike over any number of tokens: a trunk or a branch, cut, with an end."""
    trunk = [(7 * i) % 29 for i in range(20)]
    branches = [[(k * i + 3) % 29 for i in range(20)] for k in (0, 1, 5, 11)]
    given_rows = [(p, [*trunk, *branches[b]][:cut] + [28] * end) for p, b, cut, end in drawn] + [(0, [1])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradus.models.training.packed.trees, "MIN_SHARED", min_shared)
        return pack([[3, 4, 5], [6]], given_rows)


@pytest.mark.slow
@BRANCHING
@settings(max_examples=25)
def test_common_beginnings_have_the_values_and_gradients_of_rows_of_their_own(
    drawn: list[tuple[int, int, int, int]], min_shared: int
) -> None:
    given_pack = branching_pack(drawn, min_shared)
    model = tiny("qwen2").double()
    paired = zip(*(gradients(model, given_pack, form) for form in ("packed", "padded")), strict=True)
    for found, expected in paired:
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_a_prompt_is_encoded_once_for_all_its_completions() -> None:
    seen: list[int] = []
    model = tiny()
    model.get_input_embeddings().register_forward_hook(lambda _m, given, _out: seen.append(given[0].numel()))
    hidden_states(model, pack([[3, 4, 5, 6, 7]] * 4, [(0, [1, 2])] * 8), "packed")
    hidden_states(model, pack([[3, 4, 5, 6, 7]] * 4, [(0, [1, 2])] * 8), "padded")
    assert seen == [5 + 8 * 2, 8 * 7]


FORMS: dict[str, Form] = {name: "padded" if name == "gemma2" else "packed" for name in CONFIGS}
"""Gemma 2 caps its attention's scores."""


@pytest.mark.parametrize("name", sorted(FORMS))
def test_models_with_plain_attention_are_packed(name: str) -> None:
    model = tiny(name)
    assert form_of(model) == FORMS[name]
    assert model.config._attn_implementation == "sdpa"


OTHERS: dict[str, PreTrainedConfig] = {
    "a window of four tokens": MistralConfig(**SIZES, sliding_window=4),
    "recurrence": MambaConfig(vocab_size=29, hidden_size=32, num_hidden_layers=2, state_size=4),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_models_that_do_more_than_attend_are_padded(name: str) -> None:
    model: Any = AutoModelForCausalLM.from_config(OTHERS[name]).eval()
    assert form_of(model) == "padded"


def test_a_layer_without_a_structure_is_refused() -> None:
    model = tiny()
    model.set_attn_implementation("gradus")
    with pytest.raises(UnsupportedAttentionError, match="arguments of their own"):
        model(input_ids=torch.tensor([[1, 2]]))
