"""Task of every rank of an update."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradus.data.records import Json, JsonObject
from gradus.tasks.config.learning import UpdateConfig


@dataclass(frozen=True)
class RankJob:
    """The job of an update's ranks, the same for all."""

    id: str
    """The name of the launch; other hosts know it by this."""
    lake: str
    output: str
    inputs: Mapping[str, list[str]]
    config: JsonObject
    seed: int
    num_tokens: int
    """Number of tokens at once in the model: the settings' `micro_tokens`, or less after memory ran out."""
    num_halvings: int = 0
    stays: bool = False
    """True if the ranks wait for another job after this one."""
    facts: JsonObject = field(default_factory=dict[str, Json])
    """Facts that the run decides for the stage."""

    def update_config(self) -> UpdateConfig:
        """The settings of the update."""
        return UpdateConfig.model_validate(self.config)
