"""Tiny reward models: random weights drawn from a seed, one number for a text."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from gradus.models.tiny_tokenizer import tiny_tokenizer


def scorer(kind: str = "llama", num_labels: int = 1, positions: int = 64, **more: Any) -> PreTrainedModel:
    """Return a model whose scores of texts differ by about 1."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tiny_tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": positions,
        "initializer_range": 0.2,
        "num_labels": num_labels,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        if kind == "llama":
            return LlamaForSequenceClassification(LlamaConfig(**sizes, **more)).eval()
        return Qwen2ForSequenceClassification(Qwen2Config(**sizes, **more)).eval()


def scorer_folder(folder: Path, tokenizer: PreTrainedTokenizerBase | None = None, **more: Any) -> Path:
    """Save one as transformers does, with a tokenizer."""
    scorer(**more).save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder
