"""State kept inside a long update, so that a killed attempt goes on where it stood, bit for bit.

One folder a kept state; its marker is written last and names every file's SHA-256, so that a state is whole or absent.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.data.files import replace_file
from gradus.data.lake.manifest import sha256_file
from gradus.models.training.parallel.ranks import ALONE, Ranks
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import Collect
from gradus.models.training.train_state_files import restore_train_state, train_state_files
from gradus.tasks.artifacts.writing import written

_MARKER = "done.json"
StepMetrics = dict[str, float]


@dataclass(frozen=True)
class Progress:
    """Saves and restores a train state in a folder that outlives the attempt."""

    folder: Path
    train_state: TrainState
    ranks: Ranks = ALONE
    """Those that hold the state, each its part; all save together."""

    def save(self, steps: list[StepMetrics], others: Mapping[str, Collect]) -> None:
        """Save the state after these steps, with other files by name, then delete the previous one."""
        files = {**train_state_files(self.train_state, masters=True), **others}
        state = self.folder / f"step-{len(steps):06d}"
        if self.ranks.writes:
            self.folder.mkdir(exist_ok=True)
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir()
        entries = written(files, state, self.ranks)
        if not self.ranks.writes:
            return
        sha256 = {entry.name: entry.sha256 for entry in entries}
        replace_file(state / _MARKER, json.dumps({"sha256": sha256, "steps": steps}), durable=True)
        for other in self.folder.iterdir():
            if other != state:
                shutil.rmtree(other)

    def restore(self) -> tuple[list[StepMetrics], Mapping[str, Path]]:
        """Go back to the newest whole state.

        Return the metrics of the steps already taken and the files of the state; nothing if there is no state.
        """
        states = sorted(self.folder.glob("step-*"), reverse=True) if self.folder.exists() else []
        for state in states:
            found = _read_whole(state)
            if found is not None:
                files, steps = found
                restore_train_state(self.train_state, files)
                return steps, files
        return [], {}


def _read_whole(state: Path) -> tuple[dict[str, Path], list[StepMetrics]] | None:
    """Files and step metrics of a state, or None if a file is missing or does not have the marked bytes."""
    try:
        marker: dict[str, Any] = json.loads((state / _MARKER).read_bytes())
        whole = all(sha256_file(state / name) == value for name, value in marker["sha256"].items())
    except (FileNotFoundError, ValueError):
        return None
    return ({name: state / name for name in marker["sha256"]}, marker["steps"]) if whole else None
