"""The files of a policy folder, for code that looks at a folder without loading torch: names, and what can be read.

    refuse_broken(Path("checkpoint"))      # FileError: checkpoint/config.json: hidden_size is 'x' ...

Configurations and the headers of weights are looked at, no number of a weight; what passes may still not load.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import cast

from safetensors import SafetensorError, safe_open

CONFIG = "config.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "special_tokens_map.json", "chat_template*", "merges.txt")
"""Patterns of the files that an adapter may have beside it, for a tokenizer of its own."""
WHOLE = "name a folder with config.json, its tokenizer and its weights (*.safetensors)"
"""The hint for a folder that is not a policy."""
WEIGHTS_INDEX = ".safetensors.index.json"
"""Suffix of the file that says which file holds which weights."""
_TOKENIZERS = ("tokenizer*", "vocab.*", "*.model")
_TOKENIZER = "tokenizer.json"
_OBJECTS = ("tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
_SIZES = (
    *("hidden_size", "intermediate_size", "vocab_size", "head_dim", "max_position_embeddings"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
_MAX_SIZE = 10**9
_MAX_LAYERS = 10_000
_MAX_RANK = 100_000
_EMBEDDING = "model.embed_tokens.weight"
_POINTER = b"version https://git-lfs"
_SCORES = "ForSequenceClassification"
"""End of the names of the architectures of transformers that return numbers for a whole text."""

Body = Mapping[str, object]


class FileError(ValueError):
    """A file of a policy's folder that cannot be what it is called; the sentence names it."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, not a whole policy."""
    return (folder / ADAPTER_CONFIG).is_file()


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a tokenizer of its own."""
    return any(path for pattern in _TOKENIZERS for path in folder.glob(pattern))


def num_scores(folder: Path) -> int:
    """Return how many numbers the model of a folder returns for a text, by its config.json; 0 for a language model.

    Raise FileError for a config.json that is none. An adapter has none.
    """
    path = folder / CONFIG
    body = read_object(path) if path.is_file() else {}
    kinds, labels, num = body.get("architectures"), body.get("id2label"), body.get("num_labels")
    if not (_is_texts(kinds) and any(kind.endswith(_SCORES) for kind in cast("list[str]", kinds))):
        return 0
    if isinstance(labels, dict):
        return len(cast("Body", labels))
    return num if isinstance(num, int) else 2  # transformers writes down every number of labels but this one


def head_fault(folder: Path, *, scalar: bool) -> str:
    """Return the reason that a model has not the head that is asked for, a scalar one or a vocabulary; empty if it has.

    Raise FileError for a config.json that is none.
    """
    num = num_scores(folder)
    if num == scalar:
        return ""
    if not scalar:
        return "scores texts, by the architecture in its config.json, and can neither sample nor be trained"
    if not num:
        return f"has no scalar head: its config.json names no architecture that ends with {_SCORES}"
    return f"returns {num} numbers for a text, by the labels in its config.json, where a scalar head returns one"


def refuse_broken(folder: Path) -> None:
    """Raise FileError if the folder of a policy or an adapter lacks a file, or has one of the wrong kind."""
    if not is_adapter(folder) and not has_tokenizer(folder):
        raise FileError(f"{folder} has no tokenizer (tokenizer.json, or vocab files)")
    if not is_adapter(folder) and not any(folder.glob("*.safetensors")):
        raise FileError(f"{folder} has no weights as safetensors, and other formats can run code")
    for name in (*((ADAPTER_CONFIG,) if is_adapter(folder) else (CONFIG,)), _TOKENIZER, *_OBJECTS):
        if (folder / name).exists():
            _refuse_body(folder / name, read_object(folder / name))
    for path in folder.glob(f"*{WEIGHTS_INDEX}"):
        refuse_index(path)
    for path in sorted(folder.glob("*.safetensors")):
        shapes = _shapes(path)
        if not is_adapter(folder):
            _refuse_shape(folder / CONFIG, path, shapes)


def read_object(path: Path) -> Body:
    """Return the JSON object of a file; FileError if it holds none."""
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file")
    try:
        found = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError):
        raise FileError(f"{path} is not JSON: it is cut off, damaged or something else") from None
    if not isinstance(found, dict):
        raise FileError(f"{path} is not a JSON object")
    return cast("Body", found)


def _refuse_body(path: Path, body: Body) -> None:
    if path.name == ADAPTER_CONFIG:
        _refuse_adapter(path, body)
    elif path.name == CONFIG:
        _refuse_config(path, body)
    elif path.name == _TOKENIZER and not isinstance(body.get("model"), dict):
        raise FileError(f"{path} describes no tokenizer: it has no object `model`")
    elif path.name == "tokenizer_config.json" and not _is_text(body.get("tokenizer_class", "")):
        raise FileError(f"{path}: tokenizer_class is not text")


def _refuse_config(path: Path, body: Body) -> None:
    kind = body.get("model_type")
    if not isinstance(kind, str):
        raise FileError(f"{path} does not say which kind of model it is: model_type is missing or no text")
    if "auto_map" not in body and (kinds := _kinds_of_models()) and kind not in kinds:
        raise FileError(f"{path}: model_type {kind[:40]!r} is no model that the installed transformers knows")
    for name in _SIZES:
        most = _MAX_LAYERS if name == "num_hidden_layers" else _MAX_SIZE
        if not _is_size(body.get(name, 1), most) and not (
            name in ("num_key_value_heads", "head_dim") and body[name] is None
        ):
            raise FileError(f"{path}: {name} is no whole number from 1 to {most:,}")
    for name in ("hidden_act", "dtype", "torch_dtype"):
        if not isinstance(body.get(name, ""), str) and not (name != "hidden_act" and body[name] is None):
            raise FileError(f"{path}: {name} is not text")
    if not _is_texts(body.get("architectures") or []):
        raise FileError(f"{path}: architectures is not a list of texts")
    for name in ("rope_parameters", "rope_scaling", "text_config", "quantization_config"):
        if not isinstance(body.get(name) or {}, dict):
            raise FileError(f"{path}: {name} is not an object")


@cache
def _kinds_of_models() -> frozenset[str]:
    """Return each model_type of the tables of transformers, read as text: its import takes seconds."""
    spec = PathFinder.find_spec("transformers")
    folder = Path(spec.origin).parent / "models" / "auto" if spec and spec.origin else Path("nowhere")
    tables = (folder / name for name in ("auto_mappings.py", "configuration_auto.py"))
    text = "".join(table.read_text(encoding="utf-8") for table in tables if table.is_file())
    return frozenset(re.findall(r'"([^"]+)"(?:, |: )"\w+Config"', text))


def _refuse_adapter(path: Path, body: Body) -> None:
    kind = body.get("peft_type")
    if kind != "LORA":
        named = f"of kind {kind[:40]!r}" if isinstance(kind, str) else "without a kind (peft_type)"
        raise FileError(f"{path} describes an adapter {named}; only LoRA is supported")
    base, targets = body.get("base_model_name_or_path"), body.get("target_modules")
    if not isinstance(base or "", str) or not isinstance(body.get("revision") or "", str):
        raise FileError(f"{path}: the name or the revision of its base is not text")
    if not _is_size(body.get("r"), _MAX_RANK) or not _is_number(body.get("lora_alpha")):
        raise FileError(f"{path} lacks its rank or its scale: r is a whole number from 1 on, lora_alpha above 0")
    if not (targets is None or _is_texts(targets) or (_is_text(targets) and _is_pattern(targets))):
        raise FileError(f"{path}: target_modules is neither a list of names nor a regular expression")
    if body.get("bias", "none") not in ("none", "all", "lora_only"):  # what its matrices show is what counts
        raise FileError(f"{path}: bias is none of none, all and lora_only")
    for name in ("use_rslora", "use_dora"):
        if type(body.get(name, False)) is not bool:
            raise FileError(f"{path}: {name} is neither true nor false")
    for name in ("rank_pattern", "alpha_pattern"):
        found = body.get(name) or {}
        numbers = cast("Body", found) if isinstance(found, dict) else None
        if numbers is None or not all(_is_pattern(key) and _is_number(value) for key, value in numbers.items()):
            raise FileError(f"{path}: {name} is not an object of numbers by regular expressions")


def refuse_index(path: Path) -> None:
    """Raise FileError if an index of weights names a file that is not beside it."""
    files = read_object(path).get("weight_map")
    names: Iterable[object] = cast("Body", files).values() if isinstance(files, dict) else [None]
    for name in set(map(str, names)) if all(map(_is_text, names)) else {""}:
        if not name:
            raise FileError(f"{path} has no weight_map of file names")
        if Path(name).name != name:
            raise FileError(f"{path} leads out of its folder, to {name[:80]!r}")
        if not (path.parent / name).is_file():
            raise FileError(f"{path} names {name[:80]}, which is not there")


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors of a file of weights; FileError if it is none, or is cut off."""
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise FileError(f"{path} is a pointer of Git LFS, not the weights: fetch them with `git lfs pull`")
    try:
        with safe_open(path, framework="numpy") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError):
        raise FileError(f"{path} is cut off, damaged or no file of weights") from None


def _refuse_shape(config: Path, path: Path, shapes: Mapping[str, list[int]]) -> None:
    """Raise FileError if the embedding has another shape than the configuration says; quantised ones are left out.

    Architectures that call it otherwise, or whose sizes stand elsewhere, are found when the model is loaded.
    """
    body = read_object(config)
    sizes = [body.get("vocab_size"), body.get("hidden_size")]
    shape = shapes.get(_EMBEDDING, sizes)
    if None not in sizes and shape != sizes and not body.get("quantization_config"):
        raise FileError(f"{path}: {_EMBEDDING} has the shape {shape}, where {config.name} says {sizes}")


def _is_size(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and cast("float", value) > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_text, cast("list[object]", values)))


def _is_pattern(text: object) -> bool:
    try:
        re.compile(cast("str", text))
    except re.error:
        return False
    return True
