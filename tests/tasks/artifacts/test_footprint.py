"""Bytes that an update takes a parameter, by its settings."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gradus.data.lake.store import Store
from gradus.models.policy import load_policy
from gradus.models.training.lora import add_lora, trained_parameters
from gradus.models.training.settings import LoraConfig
from gradus.tasks.artifacts.ahead import footprint
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.preflight.checks import SAMPLES


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 16),  # weights, gradients, two moments
        ({"kl_coef": 0.1}, 20),
        ({"dtype": "bfloat16"}, 18),  # the masters stand for the weights, which are 2 more
        ({"dtype": "bfloat16", "kl_coef": 0.1}, 20),
        ({"ema_decay": 0.9}, 20),
        ({"ema_decay": 0.9, "kl_coef": 0.1, "reference": "ema"}, 20),
    ],
)
def test_bytes_of_a_parameter(tmp_path: Path, settings: dict[str, Any], expected: int) -> None:
    store = Store(tmp_path / "lake")
    policy = resolve_artifact(store, "bundled", "checkpoints")
    num = sum(tensor.numel() for tensor in load_file(SAMPLES / "policy" / "model.safetensors").values())
    update = UpdateConfig.model_validate(settings)
    _, found = footprint(store, policy, SampleConfig(), RolloutConfig(), update, separate_sampler=False)
    assert found == expected * num


@pytest.mark.parametrize(
    ("settings", "frozen"),
    [({}, 4), ({"dtype": "bfloat16"}, 2), ({"dtype": "bfloat16", "kl_coef": 0.1}, 2)],
)
def test_an_adapter_takes_the_base_once_and_all_else_for_its_matrices(
    tmp_path: Path, settings: dict[str, Any], frozen: int
) -> None:
    store = Store(tmp_path / "lake")
    policy = resolve_artifact(store, "bundled", "checkpoints")
    shapes = {n: tuple(t.shape) for n, t in load_file(SAMPLES / "policy" / "model.safetensors").items()}
    num = sum(prod(shape) for shape in shapes.values())
    model = load_policy(SAMPLES / "policy").model
    add_lora(model, LoraConfig(rank=3), 0)
    matrices = sum(p.numel() for p in trained_parameters(model).values())
    update = UpdateConfig.model_validate({**settings, "lora": {"rank": 3}})
    _, found = footprint(store, policy, SampleConfig(), RolloutConfig(), update, separate_sampler=False)
    assert found == frozen * num + 16 * matrices
    some = UpdateConfig.model_validate({**settings, "lora": {"rank": 3, "targets": ["q_proj"]}})
    _, less = footprint(store, policy, SampleConfig(), RolloutConfig(), some, separate_sampler=False)
    queries = sum(sum(shape) for name, shape in shapes.items() if name.endswith("q_proj.weight"))
    assert less == frozen * num + 16 * 3 * queries


def test_in_nf4_linear_weights_take_about_half_a_byte(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    policy = resolve_artifact(store, "bundled", "checkpoints")
    found = {
        quantize: footprint(
            store, policy, SampleConfig(), RolloutConfig(),
            UpdateConfig.model_validate({"dtype": "bfloat16", "lora": {"rank": 1, "quantize": quantize}}),
            separate_sampler=False,
        )[1]
        for quantize in ("none", "nf4")
    }  # fmt: skip
    linear = sum(
        module.weight.numel()
        for name, module in load_policy(SAMPLES / "policy").model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    assert found["none"] - found["nf4"] == pytest.approx(linear * (2 - 4.127 / 8), abs=1)
