"""A policy: a causal language model and its tokenizer, loaded from a folder; and how a problem becomes its prompt.

    policy = load_policy(Path("checkpoint"))
    prompt_tokens(policy.tokenizer, [prompt_text(policy.tokenizer, "1 + 1 =")])

An adapter's folder loads as its base with the adapter merged into the weights (gradus.models.adapters).
Left out: downloading (gradus.tasks.artifacts.resolve does that); quantisation other than NF4, which was not run.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from gradus.components.libraries import library_reason
from gradus.models.adapters import base_of, merged, read_adapter
from gradus.models.chat_template import is_plain
from gradus.models.errors import PolicyError
from gradus.models.policy_files import (
    CONFIG,
    FileError,
    has_tokenizer,
    head_fault,
    is_adapter,
    num_scores,
    read_object,
    refuse_broken,
)
from gradus.models.templates import PLAIN, PromptConfig, filled

Dtype = Literal["auto", "float32", "bfloat16"]
Quantize = Literal["none", "nf4"]
BEGINNING = "Hint (the beginning of a correct solution):"
"""The sentence above a hint that begins the solution, in a chat."""
_CPU = torch.device("cpu")
_DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class PromptSide:
    """Parts of a policy that prompts and completions need, without its weights."""

    tokenizer: PreTrainedTokenizerBase
    context_tokens: int
    """Maximum number of tokens the model can attend to; sys.maxsize where its configuration sets no limit."""
    end_tokens: tuple[int, ...]
    """Token ids that end a completion."""


@dataclass(frozen=True)
class Policy:
    """A model in evaluation mode and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def prompt_side(self) -> PromptSide:
        """The tokenizer, and how much the model can attend to."""
        return PromptSide(self.tokenizer, self.context_tokens, self.end_tokens)

    @property
    def context_tokens(self) -> int:
        """Maximum number of tokens the model can attend to; sys.maxsize where its configuration sets no limit."""
        return _context_tokens(self.model.config)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Token ids that end a completion."""
        return _end_tokens(self.model.generation_config, self.tokenizer)


def load_policy(
    folder: Path,
    dtype: Dtype = "auto",
    device: torch.device = _CPU,
    *,
    quantize: Quantize = "none",
    heads: bool = False,
) -> Policy:
    """Load model (safetensors only) and tokenizer from a folder, in evaluation mode; never asks the network.

    `auto` keeps the number format that the weights were saved in; `nf4` holds the weights of linear layers in 4 bits
    (QLoRA, arXiv 2305.14314) and computes in `dtype`, on a GPU with bitsandbytes. PolicyError says what is missing or
    wrong: the folder, its config.json, tokenizer or weights, a weight that is absent or of another shape, own code,
    or, without `heads`, a model with a scalar head in place of a vocabulary: a reward model.
    """
    base, tokenizer = _opened(folder, heads=heads)
    options: dict[str, Any] = {"dtype": _DTYPES[dtype], "use_safetensors": True}
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    if quantize == "nf4":
        nf4: dict[str, Any] = {
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": _DTYPES[dtype],
        }
        options |= {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4), "device_map": {"": device}}
    kind = AutoModelForSequenceClassification if num_scores(base) else AutoModelForCausalLM
    model, info = _loaded(base, "model", kind.from_pretrained, **options)
    # transformers would draw such weights at random; it lists them instead, and they are refused here by name.
    wrong = [f"{key} is missing" for key in info["missing_keys"]]
    wrong += [f"{key[0]} has another shape" for key in info["mismatched_keys"]]
    wrong += [f"{key} is too many" for key in info["unexpected_keys"] if _is_part(key, model)]
    if wrong:
        raise PolicyError(f"{base}: the weights do not fit config.json ({len(wrong)} of them, first {min(wrong)})")
    _refuse_more_tokens(folder, tokenizer, model.get_input_embeddings().num_embeddings)
    if is_adapter(folder):
        model = merged(model, read_adapter(folder))
    model.eval()
    if quantize == "none":  # bitsandbytes places what it quantises
        torch.nn.Module.to(model, device)  # in place; transformers gives its own `to` a type that takes no device
    return Policy(model, tokenizer)


def load_prompt_side(folder: Path) -> PromptSide:
    """Load a policy's tokenizer and configuration alone; PolicyError as `load_policy` has it."""
    base, tokenizer = _opened(folder)
    config = _loaded(base, "configuration", AutoConfig.from_pretrained)
    _refuse_more_tokens(folder, tokenizer, config.get_text_config().vocab_size)
    try:
        generation = GenerationConfig.from_pretrained(base, local_files_only=True)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    return PromptSide(tokenizer, _context_tokens(config), _end_tokens(generation, tokenizer))


def _is_part(key: str, model: PreTrainedModel) -> bool:
    """Return whether a weight without a place in the model belongs to one of its layers, not to a head beside it."""
    modules = {name for name, _ in model.named_modules()} - {"", model.base_model_prefix}
    parents = key.split(".")[:-1]
    return any(".".join(parents[:count]) in modules for count in range(1, len(parents) + 1))


def _refuse_more_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase, embeddings: int) -> None:
    if len(tokenizer) > embeddings:
        raise PolicyError(
            f"{folder}: the tokenizer has more tokens than the model has embeddings, {len(tokenizer)} and {embeddings};"
            " resize the model's (resize_token_embeddings), or take the tokenizer that it was trained with"
        )


def _end_tokens(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    ends = generation.eos_token_id if generation else None
    ends = tokenizer.eos_token_id if ends is None else ends
    if ends is None:
        raise PolicyError("the tokenizer has no end-of-sequence token: completions would never end")
    return tuple(ends) if isinstance(ends, Sequence) else (int(ends),)


def saved_dtype(folder: Path) -> str:
    """The number format that a policy was saved in, `float32` where its configuration does not say."""
    config = AutoConfig.from_pretrained(base_of(folder), local_files_only=True)
    return str(config.get_text_config().dtype or config.dtype or torch.float32).removeprefix("torch.")


def _context_tokens(config: PretrainedConfig) -> int:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return sys.maxsize if limit is None else int(limit)


def _opened(folder: Path, *, heads: bool = False) -> tuple[Path, PreTrainedTokenizerBase]:
    """Return the folder of the weights, and the tokenizer; PolicyError unless files and head are those of a policy."""
    base = base_of(folder)
    if not base.is_dir():
        raise PolicyError(f"{base} is not a folder: download a policy first, then name the folder it lies in")
    if not (base / CONFIG).is_file():
        raise PolicyError(f"{base} has no config.json: it is not a policy")
    try:
        config = read_object(base / CONFIG)
        refuse_broken(base)
    except FileError as error:
        raise PolicyError(f"the policy cannot be loaded: {error}") from None
    if "auto_map" in config:
        raise PolicyError(f"{base} brings its own code, which is never run")
    if fault := head_fault(base, scalar=heads and num_scores(base) > 0):
        raise PolicyError(f"{base} {fault}")
    return base, load_tokenizer(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return a policy's tokenizer, though its weights may be gone, without the chat template that an export gave it.

    An adapter may bring a tokenizer, for its chat template; without one it has its base's. PolicyError if it has none.
    """
    own = folder if has_tokenizer(folder) else base_of(folder)
    tokenizer: PreTrainedTokenizerBase = _loaded(own, "tokenizer", AutoTokenizer.from_pretrained)
    if is_plain(tokenizer.chat_template):
        tokenizer.chat_template = None
    return tokenizer


def _loaded(folder: Path, what: str, load: Callable[..., Any], **options: Any) -> Any:
    try:
        return load(folder, local_files_only=True, trust_remote_code=False, **options)
    except MemoryError:
        raise
    except Exception as error:  # a library fails over odd files with whatever it stumbles on
        raise PolicyError(f"the {what} in {folder} cannot be loaded{library_reason(error)}") from error


def new_policy(
    tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, heads: int, max_positions: int, seed: int
) -> Policy:
    """A small Llama with random weights drawn from `seed`, biases in attention, embeddings tied, float32.

    Llama, because transformers lets a Llama bring any tokenizer; a Qwen2 is given Qwen2's splitting of words.
    """
    named = ("bos_token_id", "eos_token_id", "pad_token_id")
    special: dict[str, Any] = {name: getattr(tokenizer, name) for name in named}
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
    style: PromptConfig = PLAIN,
    answer: str | None = None,
    shown: str | None = None,
) -> str:
    """The prompt of a problem; with an answer both as one text, in which that is the assistant's finished turn.

    With a chat template: the messages of `chat_turns`.
    Without: the system message as a paragraph of its own, then the template with its question, or the question and a
    line break; the hint, unless the template places it, follows on a line of its own as the beginning of the solution,
    which the completion continues; below the sentence `shown`, if there is one, on a line of its own.
    Raises PolicyError if the chat template refuses the messages or leaves out the system message, or several
    messages are given and there is no chat template.
    """
    if tokenizer.chat_template is None:
        if question is None and len(messages or []) > 1:
            raise PolicyError("it has several messages, and the policy's tokenizer has no chat template to join them")
        text = question if question is not None else "".join(m["content"] for m in messages or [])
        system = f"{style.system}\n\n" if style.system else ""
        return system + _continued(text, hint_text or "", style, shown) + (answer or "")
    turns = chat_turns(question, messages, hint_text, style, shown)
    said = [] if answer is None else [{"role": "assistant", "content": answer}]
    try:
        text = str(tokenizer.apply_chat_template([*turns, *said], tokenize=False, add_generation_prompt=not said))
    except TemplateError as error:
        advice = "; without prompt.system, its text can stand in prompt.template" if style.system else ""
        raise PolicyError(f"the policy's chat template refuses the messages: {error}{advice}") from None
    if style.system and turns[0]["content"].strip() not in text:
        raise PolicyError(
            "the policy's chat template leaves out the system message; put its text into prompt.template instead"
        )
    return text


def _continued(question: str, hint: str, style: PromptConfig, shown: str | None) -> str:
    """A prompt that the completion continues, for a policy without a chat template."""
    text = filled(style.template, question, hint) if style.template else f"{question}\n"
    if not hint or style.places_hint:
        return text
    hint = f"{shown}\n{hint.rstrip()}\n" if shown else hint
    return f"{text}{hint}" if text.endswith("\n") else f"{text}\n{hint}"


def chat_turns(
    question: str | None,
    messages: list[dict[str, str]] | None,
    hint_text: str | None,
    style: PromptConfig = PLAIN,
    shown: str | None = None,
) -> list[dict[str, str]]:
    """The messages of a problem.

    The template is filled with the text of the user's last message. The hint, unless the template places it, is a
    paragraph at its end below the sentence `shown`, that of the beginning of a solution by default. The system message
    comes first, unless the problem has one of its own.
    """
    turns = [dict(m) for m in messages] if messages else [{"role": "user", "content": question or ""}]
    last = next((turn for turn in reversed(turns) if turn["role"] == "user"), turns[-1])
    if style.template:
        last["content"] = filled(style.template, last["content"], hint_text or "")
    if hint_text and not style.places_hint:
        last["content"] += f"\n\n{shown or BEGINNING}\n{hint_text}"
    if style.system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": style.system})
    return turns


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts; a chat template has already placed the special tokens."""
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=tokenizer.chat_template is None)
    return [[int(t) for t in ids] for ids in encoded["input_ids"]]


def completion_texts(tokenizer: PreTrainedTokenizerBase, completions: Sequence[Sequence[int]]) -> list[str]:
    """The text of each completion, special tokens left out."""
    ways = (getattr_static(kind, "_decode") for kind in (type(tokenizer), PreTrainedTokenizerFast))
    if len(set(ways)) > 1 or tokenizer.clean_up_tokenization_spaces:
        return [str(tokenizer.decode(list(tokens), skip_special_tokens=True)) for tokens in completions]
    # All that transformers does then for each, in one call: it looks at every token first, which costs more.
    backend: Any = tokenizer.backend_tokenizer
    return backend.decode_batch([list(tokens) for tokens in completions], skip_special_tokens=True)
