"""What several tests share: log-probs from a whole forward pass in float64, and LoRA adapters, both by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.engines.base import Request
from models.policy import Policy

MakeAdapter = Callable[..., Path]
Check = Callable[[Policy, Request, list[int], list[float], float], None]


@pytest.fixture(scope="session")
def check_logprobs() -> Check:
    """Assert that each token lies in what truncation leaves, and its log-prob is that of the rest renormalised."""

    def check(policy: Policy, request: Request, tokens: list[int], logprobs: list[float], bound: float) -> None:
        ids = torch.tensor([[*request.prompt_tokens, *tokens]])
        with torch.no_grad():
            logits = policy.model(ids).logits[0, len(request.prompt_tokens) - 1 : -1].double()
        probabilities = torch.softmax(logits / request.temperature, -1).numpy()
        for row, token, logprob in zip(probabilities, tokens, logprobs, strict=True):
            order = np.argsort(-row)[: request.top_k or None]
            share = row[order] / row[order].sum()
            if request.top_p < 1:
                order = order[: int(np.searchsorted(np.cumsum(share), request.top_p)) + 1]
            assert token in order
            assert logprob == pytest.approx(float(np.log(row[token] / row[order].sum())), abs=bound)

    return check


@pytest.fixture(scope="session")
def make_adapter() -> MakeAdapter:
    """Write an adapter of the queries, values and feed-forward ends of a policy, as peft has the files."""

    def make(folder: Path, policy: Policy, base: str, seed: int = 7, rank: int = 4, **config: Any) -> Path:
        folder.mkdir()
        drawn = torch.Generator().manual_seed(seed)
        tensors: dict[str, torch.Tensor] = {}
        for name, layer in policy.model.named_modules():
            if name.endswith(("q_proj", "v_proj", "down_proj")):
                out_width, in_width = layer.weight.shape  # pyright: ignore[reportGeneralTypeIssues]
                for side, shape in (("A", (rank, in_width)), ("B", (out_width, rank))):
                    tensor = torch.randn(shape, generator=drawn) * 0.2
                    tensors[f"base_model.model.{name}.lora_{side}.weight"] = tensor
        save_file(tensors, folder / "adapter_model.safetensors")
        given = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 6, "bias": "none"}
        given |= {"target_modules": ["q_proj", "v_proj", "down_proj"], "base_model_name_or_path": base}
        (folder / "adapter_config.json").write_text(json.dumps({**given, **config}))
        return folder

    return make
