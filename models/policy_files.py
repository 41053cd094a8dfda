"""The files of a policy folder by name, for code that looks at a folder without loading torch."""

from pathlib import Path

CONFIG = "config.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "special_tokens_map.json", "chat_template*", "merges.txt")
"""Patterns of the files that an adapter may have beside it, for a tokenizer of its own."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, not a whole policy."""
    return (folder / ADAPTER_CONFIG).is_file()
