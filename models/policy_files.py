"""The files of a policy folder by name, for code that looks at a folder without loading torch."""

from pathlib import Path

CONFIG = "config.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, not a whole policy."""
    return (folder / ADAPTER_CONFIG).is_file()
