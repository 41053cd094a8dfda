"""Task of every rank of an update; travels as JSON files, one an update, in the folder that the ranks share."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from gradus.data.files import replace_file
from gradus.data.records import Json, JsonObject
from gradus.tasks.config.learning import UpdateConfig

RANK_PARENT = "GRADUS_RANK_PARENT_PID"
"""Variable with the process id of the torchrun that started a rank."""


@dataclass(frozen=True)
class RankJob:
    """The job of an update's ranks, the same for all."""

    id: str
    """The name of the launch; torchrun's processes meet under it."""
    lake: str
    output: str
    inputs: Mapping[str, list[str]]
    config: JsonObject
    seed: int
    num_tokens: int
    """Number of tokens at once in the model: the settings' `micro_tokens`, or less after memory ran out."""
    num_halvings: int = 0
    number: int = 0
    """Number of jobs that the same ranks did before."""
    stays: bool = False
    """True if the ranks wait for another job after this one."""
    facts: JsonObject = field(default_factory=dict[str, Json])
    """Facts that the run decides for the stage."""

    def update_config(self) -> UpdateConfig:
        """The settings of the update."""
        return UpdateConfig.model_validate(self.config)

    def write(self, folder: Path) -> Path:
        """Write the file into a folder and return its path."""
        path = folder / file_name(self.number)
        replace_file(path, json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file."""
        return cls.of(path.read_bytes())

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Read the content of the file."""
        return cls(**json.loads(content))


def file_name(number: int) -> str:
    """Return the name of a job's file."""
    return f"job-{number:05d}.json"
