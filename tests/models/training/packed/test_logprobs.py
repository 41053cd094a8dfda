"""Token log-probs against an independent pass over whole rows, for several architectures; memory; refusals."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

import gradus.models.training.packed.logprobs
from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, _compiled, _of_logits, token_logprobs
from gradus.models.training.packed.packing import Pack, pack_of

PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 11]]
COMPLETIONS = [[1, 2], [12, 13, 14, 15], [16]]
SIZES: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "gemma2": Gemma2Config(**SIZES, final_logit_softcapping=0.5, query_pre_attn_scalar=16),
    "cohere": CohereConfig(**SIZES, logit_scale=3.0),
    "granite": GraniteConfig(**SIZES, logits_scaling=0.25),
    "gpt2": GPT2Config(vocab_size=29, n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2),
}


def tiny(name: str = "llama") -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(deepcopy(CONFIGS[name])).eval()


def packed(prompts: list[list[int]] = PROMPTS, completions: list[list[int]] = COMPLETIONS) -> Pack:
    given = Ragged.of(prompts)
    return pack_of(torch.arange(len(given)), distinct(given), given, Ragged.of(completions))


@pytest.mark.parametrize("form", ["packed", "padded"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_values_are_those_of_the_whole_model_row_by_row(name: str, form: Form) -> None:
    model, temperature = tiny(name), torch.tensor([0.5, 1.0, 0.0, 1.0])
    if form == "packed" and form_of(model) == "padded":
        pytest.skip("rows of this architecture are padded")
    pack = packed([*PROMPTS, PROMPTS[2]], [*COMPLETIONS, [17, 18]])
    found = token_logprobs(model, pack, temperature, form)
    logp, entropy = found[:2]
    expected: list[tuple[float, float]] = []
    for prompt, completion, sampled_at in zip(pack.prompts, pack.completions, [0.5, 1.0, 1.0, 1.0], strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0].double() / sampled_at
        for offset, token in enumerate(completion.tolist()):
            p = torch.softmax(logits[len(prompt) - 1 + offset], -1)
            expected.append((float(p[token].log()), float(-(p * p.log()).sum())))
    assert logp.tolist() == pytest.approx([e[0] for e in expected], abs=2e-5)
    assert entropy.tolist() == pytest.approx([e[1] for e in expected], abs=2e-5)
    assert logp.dtype == entropy.dtype == torch.float32


def test_only_completion_positions_reach_the_vocabulary_and_chunks_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, warm = tiny(), torch.ones(3)
    positions: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _m, given, _out: positions.append(len(given[0])))

    def gradient() -> torch.Tensor:
        model.zero_grad()
        logp, entropy = token_logprobs(model, packed(), warm, "packed", Asked(entropy_grad=True))[:2]
        (logp * torch.arange(1.0, 8.0) + 0.1 * entropy).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole = gradient()
    assert positions == [7]
    monkeypatch.setattr(gradus.models.training.packed.logprobs, "CHUNK_LOGITS", 29 * 3)
    positions.clear()
    chunked = gradient()
    assert positions[:3] == [3, 3, 1]
    assert max(positions) == 3
    assert torch.allclose(whole, chunked, atol=1e-6)
    assert float(whole.abs().max()) > 1e-3


def test_a_pass_over_the_vocabulary_that_cannot_be_compiled_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise torch._dynamo.exc.Unsupported("no compiler here")

    monkeypatch.setattr(torch, "compile", failing)
    assert _compiled.__wrapped__("cuda") is _compiled("cpu") is _of_logits


def test_the_entropy_carries_a_gradient_only_where_asked() -> None:
    logp, entropy = token_logprobs(tiny(), packed(), torch.ones(3), "packed")[:2]
    assert (logp.requires_grad, entropy.requires_grad) == (True, False)
    assert token_logprobs(tiny(), packed(), torch.ones(3), "packed", Asked(entropy_grad=True)).entropy.requires_grad


@pytest.mark.parametrize("form", ["packed", "padded"])
def test_a_bfloat16_model_has_a_float32_softmax(form: Form) -> None:
    model = tiny().to(torch.bfloat16)
    rows = packed([[3]] * 29, [[token] for token in range(29)])
    logp = token_logprobs(model, rows, torch.ones(29), form).logp
    # All 29 tokens after the same prompt: their probabilities sum to 1 to float32 precision, not to bfloat16's.
    assert float(logp.detach().double().exp().sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("form", ["packed", "padded"])
def test_an_empty_completion_has_no_tokens(form: Form) -> None:
    model = tiny()
    logp = token_logprobs(model, packed([[3], [4, 5]], [[], [6]]), torch.ones(2), form).logp
    alone = token_logprobs(model, packed([[4, 5]], [[6]]), torch.ones(1), form).logp
    assert logp.tolist() == pytest.approx(alone.tolist(), abs=1e-6)
    assert token_logprobs(model, packed([[3]], [[]]), torch.ones(1), form).logp.shape == (0,)


@pytest.mark.parametrize("chunk", [2**26, 60])
def test_the_heads_gradient_and_curvature_are_those_of_autograd(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradus.models.training.packed.logprobs, "CHUNK_LOGITS", chunk)
    model, temperature = tiny().double(), [0.5, 1.0, 0.0]
    pack, head = packed(), model.get_output_embeddings().weight
    with torch.no_grad():
        plain = token_logprobs(model, pack, torch.tensor(temperature), "padded")
        found = token_logprobs(model, pack, torch.tensor(temperature), "padded", Asked(head=True))
    assert plain.head_gradient is None
    assert found.logp.equal(plain.logp)
    assert found.head_gradient is not None
    assert found.head_curvature is not None
    expected: list[tuple[float, float]] = []
    for prompt, completion, sampled_at in zip(pack.prompts, pack.completions, [0.5, 1.0, 1.0], strict=True):
        for offset, token in enumerate(completion.tolist()):
            logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 + offset]
            logp = torch.log_softmax(logits / sampled_at, -1)
            (own,) = torch.autograd.grad(logp[token], head, create_graph=True)
            # The Hessian of a log-prob in the weights of a linear head is minus the Fisher information.
            (along,) = torch.autograd.grad((own * own.detach()).sum(), head)
            expected.append((float(own.detach().square().sum()), -float((along * own.detach()).sum())))
    assert found.head_gradient.tolist() == pytest.approx([each[0] for each in expected], rel=1e-4)
    assert found.head_curvature.tolist() == pytest.approx([each[1] for each in expected], rel=1e-3)


def test_the_curvature_of_a_token_that_is_nearly_certain_is_no_rounding() -> None:
    logits = torch.tensor([[12.0, 0.0, -1.0, -2.0]])
    found = _of_logits(Asked(head=True), logits, torch.tensor([0]), torch.ones(1), None)
    p = torch.softmax(logits[0].double(), -1)
    u = torch.tensor([1.0, 0, 0, 0]).double() - p
    assert found.head_gradient is not None
    assert found.head_curvature is not None
    assert float(found.head_gradient) == pytest.approx(float(u @ u), rel=1e-4)
    assert float(found.head_curvature) == pytest.approx(float(u @ (torch.diag(p) - torch.outer(p, p)) @ u), rel=1e-3)
