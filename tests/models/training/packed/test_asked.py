"""What a head computes beside log-probs, and its gradient, against torch.log_softmax of full logits; memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

import gradus.models.training.packed.forward
import gradus.models.training.packed.logprobs
from gradus.models.objectives.ragged import Ragged
from gradus.models.training.packed.forward import form_of
from gradus.models.training.packed.logprobs import CHUNK_LOGITS, Asked, TokenLogprobs, token_logprobs
from gradus.models.training.packed.trees import tree_blocks
from tests.models.training.packed.test_logprobs import COMPLETIONS, PROMPTS, packed, tiny

TEMPERATURES = [0.5, 1.0, 1.7]
ROW_TEMPERATURES = [t for t, completion in zip(TEMPERATURES, COMPLETIONS, strict=True) for _ in completion]
CANDIDATES = torch.tensor([[i, (5 * i + 3) % 29, 28 - i] for i in range(7)])
TARGETS = [token for completion in COMPLETIONS for token in completion]
FIELDS: dict[str, tuple[Asked, Callable[[Tensor], Tensor]]] = {
    "logp": (Asked(), lambda logits: torch.log_softmax(logits, -1)[range(7), TARGETS]),
    "entropy": (
        Asked(entropy_grad=True),
        lambda logits: -(torch.softmax(logits, -1) * torch.log_softmax(logits, -1)).sum(-1),
    ),
    "candidates_logp": (
        Asked(candidates=CANDIDATES),
        lambda logits: torch.stack([torch.log_softmax(logits, -1)[range(7), ids] for ids in CANDIDATES.T], 1),
    ),
    "logsumexp": (Asked(logsumexp=True), lambda logits: logits.exp().sum(-1).log()),
    "logp_at_1": (
        Asked(at_1=True),
        lambda logits: torch.log_softmax(logits * torch.tensor(ROW_TEMPERATURES)[:, None], -1)[range(7), TARGETS],
    ),
    "mean_logp": (Asked(mean_logp=True), lambda logits: torch.log_softmax(logits, -1).sum(-1) / 29),
}
"""What is asked for, and the same of full logits (7, 29) at temperature."""


def full_logits(model: PreTrainedModel) -> Tensor:
    """Logits (7, V) in float64 of each row by itself."""
    rows: list[Tensor] = []
    for prompt, completion, temperature in zip(PROMPTS, COMPLETIONS, TEMPERATURES, strict=True):
        logits: Any = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        rows.append(logits.double() / temperature)
    return torch.cat(rows)


def gradient(model: PreTrainedModel, values: Tensor) -> Tensor:
    model.zero_grad()
    weights = torch.linspace(-1.0, 2.0, values.numel(), dtype=values.dtype).view_as(values)
    (values * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def asked_of(model: PreTrainedModel, asked: Asked) -> TokenLogprobs:
    return token_logprobs(model, packed(), torch.tensor(TEMPERATURES), form_of(model), asked)


@pytest.mark.parametrize("tokens_at_once", [3, 2**26])
@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])
@pytest.mark.parametrize("field", sorted(FIELDS))
def test_fields_and_gradients_are_those_of_full_logits(
    field: str, name: str, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradus.models.training.packed.logprobs, "CHUNK_LOGITS", 29 * tokens_at_once)
    asked, of_logits = FIELDS[field]
    model = tiny(name)
    expected = of_logits(full_logits(model))
    found: Tensor = getattr(asked_of(model, asked), field)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)
    expected_gradient = gradient(model, expected)
    assert float(expected_gradient.abs().max()) > 1e-3
    torch.testing.assert_close(gradient(model, found), expected_gradient, atol=2e-5, rtol=1e-4)


def test_the_most_likely_tokens_are_those_of_full_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradus.models.training.packed.logprobs, "CHUNK_LOGITS", 29 * 3)
    model = tiny()
    found = asked_of(model, Asked(top_k=4))
    assert found.top_ids is not None
    assert found.top_logp is not None
    logp, ids = torch.log_softmax(full_logits(model), -1).sort(-1, descending=True)
    assert found.top_ids.tolist() == ids[:, :4].tolist()
    torch.testing.assert_close(found.top_logp.double(), logp[:, :4].detach(), atol=2e-5, rtol=1e-5)
    assert not found.top_logp.requires_grad


def test_what_is_not_asked_for_is_not_there() -> None:
    assert set(asked_of(tiny(), Asked())[2:]) == {None}


class Largest(TorchDispatchMode):
    """The largest memory that any operation returned, in bytes, and the operation."""

    num_bytes, name = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.untyped_storage().nbytes() > self.num_bytes:
                self.num_bytes, self.name = each.untyped_storage().nbytes(), str(func)
        return found


def test_a_long_batch_of_a_large_vocabulary_holds_no_tensor_of_tokens_times_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 8 completions of 4,096 tokens: shapes and storages are real, numbers are not computed.
    vocabulary, rows, length = 151_936, 8, 4_096
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=2 * length,
        tie_word_embeddings=True,
    )
    pack = packed([[i] for i in range(rows)], [torch.arange(length).tolist()] * rows)
    blocks, temperature = tree_blocks(pack.spans, pack.positions), torch.ones(rows)
    row = pack.completions.row
    monkeypatch.setattr(gradus.models.training.packed.forward, "tree_blocks", lambda *_: blocks)
    monkeypatch.setattr(Ragged, "row", property(lambda _: row))
    with FakeTensorMode(allow_non_fake_inputs=True), Largest() as largest:
        model: Any = AutoModelForCausalLM.from_config(config).eval()
        found = token_logprobs(model, pack, temperature, "packed", Asked(entropy_grad=True, logsumexp=True))
        assert found.logsumexp is not None
        assert tuple(found.logp.shape) == (rows * length,)
        (found.logp + found.entropy + found.logsumexp).sum().backward()
    assert largest.num_bytes <= 4 * CHUNK_LOGITS < 4 * rows * length * vocabulary / 60, largest.name
    assert largest.num_bytes > 0.9 * 4 * CHUNK_LOGITS, "no chunk of logits was seen"
