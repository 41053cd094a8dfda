"""LoRA adapters: W + (alpha / r) B A computed by hand and by peft's own unmerged forward, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.errors import PolicyError
from gradus.models.policy import Policy, load_policy, load_prompt_side, new_policy, saved_dtype
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, is_adapter
from gradus.models.tiny_tokenizer import tiny_tokenizer

Q = "model.layers.0.self_attn.q_proj"
IDS = torch.tensor([[9, 12, 5, 10, 7]])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy(tiny_tokenizer(), width=16, layers=2, heads=2, max_positions=32, seed=0)


@pytest.fixture
def adapter(policy: Policy, make_adapter: Callable[..., Path], tmp_path: Path) -> Path:
    """An adapter that calls its base by the way from its own folder."""
    policy.model.save_pretrained(tmp_path / "base")
    policy.tokenizer.save_pretrained(tmp_path / "base")
    return make_adapter(tmp_path / "adapter", policy, "../base")


def changed(folder: Path, **settings: Any) -> Path:
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**config, **settings}))
    return folder


def by_hand(policy: Policy, folder: Path, scale: Callable[[str], float]) -> dict[str, torch.Tensor]:
    """Every parameter in float64, the adapter added."""
    weights = {name: p.detach().double() for name, p in policy.model.named_parameters()}
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    for name in [n for n in tensors if ".lora_A." in n]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[name].double(), tensors[name.replace("lora_A", "lora_B")].double()
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + scale(module) * b @ a
    return weights


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, lambda _: 6 / 4),
        ({"use_rslora": True}, lambda _: 6 / 2),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 2}}, lambda module: (2 if module == Q else 6) / 4),
    ],
)
def test_merged_weights_are_those_of_the_formula(
    policy: Policy, adapter: Path, settings: dict[str, Any], scale: Callable[[str], float]
) -> None:
    merged = load_policy(changed(adapter, **settings))
    expected = by_hand(policy, adapter, scale)
    found = dict(merged.model.named_parameters())
    assert sorted(found) == sorted(expected)
    assert all(torch.allclose(found[name].double(), expected[name], atol=1e-6) for name in expected)
    assert float((expected[f"{Q}.weight"] - policy.model.get_parameter(f"{Q}.weight").detach()).abs().mean()) > 0.02
    assert proof_of_merged(dict(merged.model.state_dict()), read_adapter(adapter)) == len(expected)
    assert (merged.prompt_side.context_tokens, merged.end_tokens, merged.model.training) == (32, (1,), False)


def test_an_adapter_that_peft_wrote_gives_the_logits_of_peft_without_merging(adapter: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = load_policy(adapter.parent / "base")
    torch.manual_seed(1)
    made = get_peft_model(base.model, LoraConfig(r=2, lora_alpha=3, target_modules="all-linear", use_rslora=True))
    for name, parameter in made.named_parameters():
        if ".lora_B." in name:
            parameter.data.normal_()
    made.save_pretrained(tmp_path / "own")
    merged = load_policy(changed(tmp_path / "own", base_model_name_or_path="../base"))
    with torch.no_grad():
        assert torch.allclose(merged.model(IDS).logits, made(IDS).logits, atol=1e-4)
        assert not torch.allclose(merged.model(IDS).logits, load_policy(tmp_path / "base").model(IDS).logits, atol=0.1)


def test_in_bfloat16_the_sum_is_rounded_once_and_still_proved(adapter: Path) -> None:
    merged = load_policy(adapter, "bfloat16")
    assert proof_of_merged(dict(merged.model.state_dict()), read_adapter(adapter)) > 12


def test_stale_weights_are_not_taken_for_merged_ones(
    policy: Policy, adapter: Path, make_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    other = make_adapter(tmp_path / "other", policy, "../base", seed=8)
    for held, name in ((load_policy(other), "down_proj"), (policy, "down_proj")):
        with pytest.raises(ValueError, match=f"{name}.weight is not the base's with what .*adapter adds"):
            proof_of_merged(dict(held.model.state_dict()), read_adapter(adapter))
    held = dict(load_policy(adapter).model.state_dict())
    held["model.norm.weight"] = held["model.norm.weight"] + 1e-3
    with pytest.raises(ValueError, match=r"1 of .* tensors .*model\.norm\.weight"):
        proof_of_merged(held, read_adapter(adapter))


def test_what_prompts_need_is_the_bases_but_for_a_tokenizer_of_its_own(adapter: Path) -> None:
    assert is_adapter(adapter)
    assert not is_adapter(adapter.parent / "base")
    side = load_prompt_side(adapter)
    assert (side.context_tokens, side.end_tokens, side.tokenizer.chat_template) == (32, (1,), None)
    assert saved_dtype(adapter) == "float32"
    own = tiny_tokenizer()
    own.chat_template = "{{ messages[0].content }}"
    own.save_pretrained(adapter)
    assert load_prompt_side(adapter).tokenizer.chat_template == own.chat_template
    assert load_policy(adapter).tokenizer.chat_template == own.chat_template


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, r"of kind 'IA3'; only LoRA"),
        ({"peft_type": "of a later peft"}, "of kind 'of a later peft'; only LoRA"),
        ({"use_dora": True}, "sets use_dora"),
        ({"alora_invocation_tokens": [5, 6]}, "sets alora_invocation_tokens"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "sets layer_replication"),
        ({"init_lora_weights": "pissa"}, "begun by pissa changes its base too"),
        ({"lora_alpha": None}, "lacks its rank or its scale: r is a whole number"),
        ({"lora_alpha": -1}, "lacks its rank or its scale: r is a whole number"),
        ({"base_model_name_or_path": "../nowhere"}, r"nowhere, is not there"),
        ({"base_model_name_or_path": "."}, "is an adapter itself"),
        ({"base_model_name_or_path": None}, "lacks its base"),
    ],
)
def test_other_adapters_are_refused_by_what_they_set(adapter: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_prompt_side(changed(adapter, **settings))


def test_keys_of_a_later_peft_and_of_other_tensors_leave_a_plain_adapter_what_it_is(adapter: Path) -> None:
    expected = dict(load_policy(adapter).model.named_parameters())
    found = load_policy(changed(adapter, of_a_later_peft={"x": 3}, peft_version="9.9", bias="all"))
    assert all(torch.equal(p, expected[name]) for name, p in found.model.named_parameters())


def test_broken_or_unsafe_files_are_refused(adapter: Path, tmp_path: Path) -> None:
    (adapter / ADAPTER_WEIGHTS).rename(adapter / "kept")
    torch.save({}, adapter / "adapter_model.bin")
    with pytest.raises(PolicyError, match="other formats can run code"):
        load_policy(adapter)
    (adapter / ADAPTER_WEIGHTS).write_bytes(b"\xff" * 64)
    with pytest.raises(PolicyError, match=r"adapter_model\.safetensors is cut off, damaged"):
        load_policy(adapter)
    for content in ("{", "[]"):
        (adapter / ADAPTER_CONFIG).write_text(content)
        with pytest.raises(PolicyError, match=r"adapter_config\.json is not (JSON|a JSON object)"):
            load_policy(adapter)


def test_matrices_that_do_not_fit_the_base_or_each_other_are_named(adapter: Path) -> None:
    whole = load_file(adapter / ADAPTER_WEIGHTS)
    a, b = (f"base_model.model.{Q}.lora_{side}.weight" for side in "AB")
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({**whole, a: torch.zeros(4, 17)}, r"adapts .*q_proj of shape \(16, 17\), the base has \(16, 16\)"),
        ({k.replace("layers.1", "layers.5"): v for k, v in whole.items()}, r"layers\.5.*the base has no linear layer"),
        ({k: v for k, v in whole.items() if k != b}, "has no pair of matrices"),
        ({**whole, b: torch.zeros(16, 3)}, "has no pair of matrices"),
        ({k.replace(f"{Q}.lora_A.weight", f"{Q}.lora_magnitude_vector"): v for k, v in whole.items()}, "adapts more"),
        ({**whole, "base_model.model.lm_head.weight": torch.ones(23, 16)}, r"adapts more .*lm_head\.weight"),
        ({**whole, f"base_model.model.{Q}.lora_B.bias": torch.ones(16)}, r"adapts more .*lora_B\.bias"),
        ({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 16)}
         | {"base_model.model.lm_head.lora_B.weight": torch.ones(23, 4)}, "the output layer are not supported"),
        ({k: v for k, v in whole.items() if Q not in k}, "what it adapts and its file disagree on .*q_proj"),
        ({}, "holds no matrices"),
    ]  # fmt: skip
    for tensors, message in cases:
        save_file(tensors, adapter / ADAPTER_WEIGHTS)
        with pytest.raises(PolicyError, match=message):
            load_policy(adapter)


def test_without_peft_it_is_asked_for(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(PolicyError, match=r"pip install 'gradus\[lora\]'"):
        load_policy(adapter)
