"""Bytes that an update takes a parameter, by its settings."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from gradus.data.lake.store import Store
from gradus.tasks.artifacts.footprint import footprint
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
    found = footprint(store, policy, SampleConfig(), RolloutConfig(), update, separate_sampler=False)
    assert found.update == expected * num
