"""LoRA layers in training: the base at first, gradients by the chain rule, files that peft reads, what is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.errors import PolicyError
from gradus.models.policy import load_policy
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from gradus.models.training.lora import (
    adapter_files,
    add_lora,
    continue_lora,
    has_lora,
    trained_parameters,
    without_lora,
)
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import token_logprobs
from gradus.models.training.settings import LoraConfig, StepConfig
from gradus.models.training.state import TrainState
from tests.models.training.packed.test_logprobs import tiny
from tests.models.training.test_recomputation import BUNDLED, gradients, pack

SETTINGS = LoraConfig(rank=3, alpha=6)


def logp(model: PreTrainedModel, form: Form = "packed") -> Tensor:
    return token_logprobs(model, pack(), torch.ones(6), form).logp


def adapted(name: str = "llama", seed: int = 7, settings: LoraConfig = SETTINGS) -> PreTrainedModel:
    model = tiny(name)
    add_lora(model, settings, seed, "../base")
    return model


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """The model with other B than zeros."""
    drawn = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in trained_parameters(model).items():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=drawn) * 0.1)
    return model


def written(model: PreTrainedModel, folder: Path) -> Path:
    folder.mkdir()
    for name, content in adapter_files(model, trained_parameters(model)).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["packed", "padded"])
def test_the_first_policy_is_the_base_to_the_bit(form: Form, dtype: Any) -> None:
    base, model = load_policy(BUNDLED, dtype).model, load_policy(BUNDLED, dtype).model
    add_lora(model, SETTINGS, 7)
    with torch.no_grad():
        assert torch.equal(logp(model, form), logp(base, form))
    assert form_of(model) == form_of(base) == "packed"


def test_a_is_drawn_from_the_seed_alone_b_is_zero_and_nothing_else_is_trained() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = adapted("qwen2")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again, other = adapted("qwen2"), adapted("qwen2", seed=8)
    found = trained_parameters(model)
    layers = model.config.num_hidden_layers
    assert len(found) == 2 * 7 * layers  # q, k, v, o, gate, up, down
    assert {name for name, p in model.named_parameters() if p.requires_grad} == set(found)
    for name, parameter in found.items():
        assert parameter.dtype == torch.float32
        if ".lora_A." in name:
            bound = parameter.shape[1] ** -0.5
            assert bound / 2 < float(parameter.detach().abs().max()) <= bound
            assert torch.equal(parameter, again.get_parameter(name))
            assert not torch.equal(parameter, other.get_parameter(name))
        else:
            assert not parameter.any()


def test_gradients_are_those_of_the_whole_weights_by_the_chain_rule() -> None:
    """W + s B A: dL/dB = s dL/dW A^T and dL/dA = s B^T dL/dW, of the model with that sum as its weight."""
    model = moved(adapted("qwen2"))
    whole, scale = tiny("qwen2"), SETTINGS.alpha / SETTINGS.rank
    matrices = {name: p.detach().clone() for name, p in trained_parameters(model).items()}
    modules = [name.removesuffix(".lora_A.default.weight") for name in matrices if ".lora_A." in name]
    pairs = {m: tuple(matrices[f"{m}.lora_{side}.default.weight"] for side in "AB") for m in modules}
    with torch.no_grad():
        for module, (a, b) in pairs.items():
            whole.get_parameter(f"{module}.weight").add_(scale * b @ a)
    logp(whole).sum().backward()
    logp(model).sum().backward()
    for module, (a, b) in pairs.items():
        gradient = whole.get_parameter(f"{module}.weight").grad
        assert gradient is not None
        for side, expected in (("A", scale * b.T @ gradient), ("B", scale * gradient @ a.T)):
            found = model.get_parameter(f"{module}.lora_{side}.default.weight").grad
            assert found is not None
            assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max())), (module, side)


@pytest.mark.parametrize("form", ["packed", "padded"])
def test_layers_that_are_computed_again_have_the_same_gradients_of_the_adapter(form: Form) -> None:
    model = moved(adapted("qwen2"))
    plain, again = (gradients(model, form, wanted=wanted)[0] for wanted in (False, True))
    assert len(plain) == len(again) == len(trained_parameters(model))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


def test_without_its_layers_the_model_is_the_base_and_trains_on_afterwards() -> None:
    base, model = tiny("qwen2"), moved(adapted("qwen2"))
    with torch.no_grad():
        own = logp(model)
        with without_lora(model):
            assert torch.equal(logp(model), logp(base))
        assert torch.equal(logp(model), own)
        assert not torch.equal(own, logp(base))
    logp(model).sum().backward()
    assert all(p.grad is not None for p in trained_parameters(model).values())


def test_the_train_state_steps_averages_and_restores_the_matrices_alone() -> None:
    model = adapted("qwen2")
    model.bfloat16()
    for parameter in trained_parameters(model).values():
        parameter.data = parameter.data.float()
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if ".lora_" not in n}
    state = TrainState(model, StepConfig(lr=1e-2, ema_decay=0.5), 0)
    state.adopt(StepConfig(lr=1e-2, ema_decay=0.5))
    assert state.masters == trained_parameters(model)
    first = {name: master.detach().clone() for name, master in state.masters.items()}
    (-logp(model).sum()).backward()
    state.advance()
    for name, master in state.masters.items():
        assert torch.allclose(state.average[name], (first[name] + master.detach()) / 2, atol=1e-7)
    with state.averaged():
        assert all(torch.equal(p, state.average[name]) for name, p in trained_parameters(model).items())
    moved_names = {name for name, master in state.masters.items() if not torch.equal(master, first[name])}
    assert moved_names == {name for name in first if ".lora_B." in name}  # with B = 0 no gradient reaches A
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)


def test_peft_reads_what_is_written_and_training_goes_on_from_it(tmp_path: Path) -> None:
    from peft import PeftModel

    model = moved(adapted("qwen2"))
    tiny("qwen2").save_pretrained(tmp_path / "base")
    folder = written(model, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(tiny("qwen2"), str(folder))
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, model(ids).logits)
    adapter, again = read_adapter(folder), tiny("qwen2")
    continue_lora(again, SETTINGS, adapter)
    assert trained_parameters(again).keys() == trained_parameters(model).keys()
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in trained_parameters(model).items())
    held = dict(theirs.merge_and_unload().state_dict())
    assert proof_of_merged(held, adapter) == len(held)


def test_files_hold_exactly_the_matrices_in_float32_and_are_the_same_bytes_each_time() -> None:
    model = moved(adapted())
    first, second = (adapter_files(m, trained_parameters(m)) for m in (model, copy.deepcopy(model)))
    assert first == second
    assert set(first) == {ADAPTER_CONFIG, ADAPTER_WEIGHTS}
    tensors = load(first[ADAPTER_WEIGHTS])
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    assert len(tensors) == len(trained_parameters(model))


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("qwen2", ("q_prj",), "q_prj is no linear layer to adapt; the policy has down_proj, .*, q_proj"),
        ("qwen2", ("q_proj", "lm_head"), "lm_head is no linear layer to adapt"),
        ("qwen2", ("embed_tokens",), "embed_tokens is no linear layer"),
        ("gpt2", "all-linear", "c_attn is no linear layer under plain LoRA"),
    ],
)
def test_targets_that_cannot_be_adapted_are_named(name: str, targets: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        adapted(name, settings=LoraConfig(targets=targets))


def test_an_adapter_that_the_settings_do_not_describe_is_refused(tmp_path: Path) -> None:
    tiny("qwen2").save_pretrained(tmp_path / "base")
    adapter = read_adapter(written(moved(adapted("qwen2")), tmp_path / "adapter"))
    cases = [
        (LoraConfig(rank=4, alpha=6), "has rank 3 in .*, and rank = 4"),
        (LoraConfig(rank=3, alpha=3), r"scales .* by 2, and alpha = 3 with rank = 3 by 1"),
        (LoraConfig(rank=3, alpha=6, targets=("q_proj",)), "adapts .*, other than update.lora"),
    ]
    for settings, message in cases:
        with pytest.raises(PolicyError, match=message):
            continue_lora(tiny("qwen2"), settings, adapter)
    partial = adapted("qwen2", settings=LoraConfig(rank=3, alpha=6, targets=("q_proj", "v_proj")))
    less = read_adapter(written(moved(partial), tmp_path / "less"))
    with pytest.raises(PolicyError, match=r"does not adapt .*down_proj, other than update\.lora"):
        continue_lora(tiny("qwen2"), SETTINGS, less)
    assert has_lora(partial)
    assert not has_lora(tiny("qwen2"))
