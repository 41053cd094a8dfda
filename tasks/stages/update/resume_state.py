"""State kept inside a long update, so that a killed attempt goes on where it stood, bit for bit.

One folder a kept state; its marker is written last and names every file's SHA-256, so that a state is whole or absent.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.data.files import replace_file
from gradus.models.training.checkpoint import (
    AVERAGE,
    MASTERS,
    average_bytes,
    restore_average,
    restore_train_state,
    restore_weights,
    train_state_bytes,
    weights_bytes,
)
from gradus.models.training.state import TrainState

_MARKER = "done.json"
StepMetrics = dict[str, float]


@dataclass(frozen=True)
class Progress:
    """Saves and restores a train state in a folder that outlives the attempt."""

    folder: Path
    train_state: TrainState

    def save(self, steps: list[StepMetrics], others: Mapping[str, bytes]) -> None:
        """Save the state after these steps, with other files by name, then delete the previous one."""
        self.folder.mkdir(exist_ok=True)
        state = self.folder / f"step-{len(steps):06d}"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        files = {MASTERS: weights_bytes(self.train_state), **train_state_bytes(self.train_state), **others}
        if self.train_state.average:
            files[AVERAGE] = average_bytes(self.train_state)
        for name, content in files.items():
            replace_file(state / name, content, durable=True)
        sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        replace_file(state / _MARKER, json.dumps({"sha256": sha256, "steps": steps}), durable=True)
        for other in self.folder.iterdir():
            if other != state:
                shutil.rmtree(other)

    def restore(self) -> tuple[list[StepMetrics], Mapping[str, bytes]]:
        """Go back to the newest whole state.

        Return the metrics of the steps already taken and the files of the state; nothing if there is no state.
        """
        states = sorted(self.folder.glob("step-*"), reverse=True) if self.folder.exists() else []
        for state in states:
            found = _read_whole(state)
            if found is not None:
                files, steps = found
                restore_weights(self.train_state, files[MASTERS])
                restore_train_state(self.train_state, files)
                if AVERAGE in files:
                    restore_average(self.train_state, files[AVERAGE])
                return steps, files
        return [], {}


def _read_whole(state: Path) -> tuple[dict[str, bytes], list[StepMetrics]] | None:
    """Files and step metrics of a state, or None if a file is missing or does not have the marked bytes."""
    try:
        marker: dict[str, Any] = json.loads((state / _MARKER).read_bytes())
        files = {name: (state / name).read_bytes() for name in marker["sha256"]}
    except (FileNotFoundError, ValueError):
        return None
    whole = all(hashlib.sha256(files[name]).hexdigest() == value for name, value in marker["sha256"].items())
    return (files, marker["steps"]) if whole else None
