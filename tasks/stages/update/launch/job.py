"""What every rank of an update is to do; travels as a JSON file in the folder that the ranks share."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from gradus.data.records import JsonObject

FILE = "job.json"
RANK_PARENT = "GRADUS_RANK_PARENT_PID"
"""Where a rank finds the process id of the torchrun that started it."""


@dataclass(frozen=True)
class RankJob:
    """The job of an update's ranks, the same for all."""

    id: str
    """The name of this launch; torchrun's processes meet under it."""
    lake: str
    output: str
    inputs: Mapping[str, list[str]]
    config: JsonObject
    seed: int
    num_tokens: int
    """How many tokens go through the model at once: the settings' `micro_tokens`, or less after memory ran out."""
    num_halvings: int = 0

    def write(self, folder: Path) -> Path:
        """Write the file into a folder and return its path."""
        path = folder / FILE
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file."""
        return cls(**json.loads(path.read_bytes()))
