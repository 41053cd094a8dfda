"""The stage wave: its declaration and settings."""

from collections.abc import Mapping

from pydantic import Field

from gradus.components.chosen import WaveConfig, chosen_in
from gradus.components.settings import Config, empty
from gradus.components.stage import Stage
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.round_columns import round_columns


class PlanningConfig(Config):
    """One call of a wave: the function, and how what it plans is sampled and drawn."""

    wave: WaveConfig
    """The function."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""
    curate: CurateConfig = Field(default_factory=CurateConfig)
    """Filters, ranking and sampler of the problems that it draws."""
    roles: dict[str, SampleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Sampling of rows of each role that say nothing else."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems and plan."""
        return round_columns(self.wave.needs, [chosen.needs for chosen in chosen_in(self.curate)])


WAVE = Stage(
    "wave",
    "Plan what a round samples after the rollouts that are there.",
    version=1,
    makes="plan",
    settings=PlanningConfig,
    reads=lambda settings: settings.reads,
    verb=False,
    run="gradus.tasks.stages.wave:run",
)
