"""Train states as bytes, by way of their files."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from gradus.models.training.checkpoint import SavedDtype
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import Collect
from gradus.models.training.train_state_files import restore_train_state, train_state_files

OPTIMIZER, MASTERS, CURSOR = "optimizer.safetensors", "masters.safetensors", "state.json"


def write_alone(files: Mapping[str, Collect], folder: Path) -> None:
    """Write files as one process that holds all of them whole."""
    for name, collect in files.items():
        write = collect(0)
        assert write is not None
        write(folder / name)


def state_bytes(train_state: TrainState) -> dict[str, bytes]:
    """Every file of a train state, masters included, by name."""
    with tempfile.TemporaryDirectory() as folder:
        write_alone(train_state_files(train_state, masters=True), Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def weights_bytes(train_state: TrainState) -> bytes:
    """The file of the masters."""
    return state_bytes(train_state)[MASTERS]


def restore_bytes(train_state: TrainState, files: Mapping[str, bytes], saved: SavedDtype | None = None) -> None:
    """Restore a train state from the content of its files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        restore_train_state(train_state, {name: Path(folder, name) for name in files}, saved)
