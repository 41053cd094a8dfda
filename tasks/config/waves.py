"""The stage wave: its declaration and settings."""

from collections.abc import Mapping

from pydantic import Field

from gradus.components.chosen import WaveConfig, chosen_in
from gradus.components.settings import MAX_ROUNDS, Config, empty
from gradus.components.stage import Stage
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.round_columns import round_columns, tracked_columns


class PlanningConfig(Config):
    """One call of a wave: the function, and how what it plans is sampled and drawn."""

    wave: WaveConfig
    """The function."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""
    curate: CurateConfig = Field(default_factory=CurateConfig)
    """Filters, ranking and sampler of the problems that it draws."""
    max_age: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Age of the stored rollouts that it may take up, updates; filled in if it reads them."""

    @property
    def tracked(self) -> Mapping[str, tuple[str, ...]]:
        """Key columns of each column of a tracker that the wave, or what draws for it, reads."""
        return self.curate.tracked

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems, plan and trackers."""
        keys = [key for by in self.tracked.values() for key in by]
        found = round_columns(self.wave.needs, [chosen.needs for chosen in chosen_in(self.curate)], keys)
        return {**found, **tracked_columns(self.tracked)}


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
