"""A policy: a causal language model and its tokenizer, loaded from a folder; and how a problem becomes its prompt.

Left out: downloading (tasks.supply does that), adapters, quantisation.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

Dtype = Literal["auto", "float32", "bfloat16"]
_DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16}


class PolicyError(ValueError):
    """A folder that cannot be loaded as a policy; the sentence says why."""


@dataclass(frozen=True)
class Policy:
    """A model in evaluation mode and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def context_tokens(self) -> int:
        """How many tokens the model can attend to."""
        return int(self.model.config.max_position_embeddings)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Token ids that end a completion."""
        ends = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ends = self.tokenizer.eos_token_id if ends is None else ends
        if ends is None:
            raise PolicyError("the tokenizer has no end-of-sequence token: completions would never end")
        return tuple(ends) if isinstance(ends, Sequence) else (int(ends),)


def load_policy(folder: Path, dtype: Dtype = "auto", *, trust_remote_code: bool = False) -> Policy:
    """Load model (safetensors only) and tokenizer from a folder; PolicyError says what is missing."""
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise PolicyError(f"{folder} has no config.json: it is not a policy that transformers can load")
    if "auto_map" in json.loads(config_path.read_text()) and not trust_remote_code:
        raise PolicyError(f"{folder} brings its own code, which is not run unless asked for (trust_remote_code)")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=_DTYPES[dtype], use_safetensors=True, **options)
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    if len(tokenizer) > model.config.vocab_size:
        raise PolicyError(f"{folder}: the tokenizer has more tokens than the model has embeddings")
    return Policy(model.eval(), tokenizer)


def new_policy(
    tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, heads: int, max_positions: int, seed: int
) -> Policy:
    """A small Llama with random weights drawn from `seed`, biases in attention, embeddings tied, float32.

    Llama, because transformers lets a Llama bring any tokenizer; a Qwen2 is given Qwen2's splitting of words.
    """
    special: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max_positions,
        attention_bias=True,
        tie_word_embeddings=True,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return Policy(model.eval(), tokenizer)


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    question: str | None,
    messages: list[dict[str, str]] | None = None,
    hint_text: str | None = None,
) -> str:
    """The prompt of a problem.

    With a chat template: the messages, the hint as a marked paragraph at the end of the last one.
    Without: the question, a line break, and the hint as the beginning of the solution, which the completion continues.
    """
    if tokenizer.chat_template is None:
        text = question if question is not None else "\n".join(m["content"] for m in messages or [])
        return f"{text}\n{hint_text or ''}"
    turns = [dict(m) for m in messages] if messages else [{"role": "user", "content": question or ""}]
    if hint_text:
        turns[-1]["content"] += f"\n\nHint (the beginning of a correct solution):\n{hint_text}"
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a prompt; a chat template has already placed the special tokens."""
    encoded = tokenizer(text, add_special_tokens=tokenizer.chat_template is None)
    return [int(t) for t in encoded["input_ids"]]
