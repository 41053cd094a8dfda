"""The stage wave: its declaration and settings, and the models that sample its rows."""

from collections.abc import Mapping

from pydantic import Field

from gradus.components.chosen import WaveConfig, chosen_in
from gradus.components.settings import MAX_ROUNDS, Config, empty, unset
from gradus.components.stage import Stage
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.rounds import round_columns


class RoleConfig(Config):
    """One model, how it samples and is trained; overrides of the stage `roles.NAME` change it by round."""

    policy: str = Field(default="", exclude_if=empty)
    """The model, named as `policy` is; empty for the policy that is trained, as of each round."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Its engine and prompt."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""
    update: UpdateConfig | None = Field(default=None, exclude_if=unset)
    """Training of the model, after the policy's update of each round, on the rows that it sampled in it and that a
    [score.USE] judged; none keeps it frozen. It begins as `policy`, or as the run's policy begins."""

    def learning(self, name: str) -> UpdateConfig | None:
        """Return the settings of its updates under its name; None if it is not trained."""
        return None if self.update is None else self.update.model_copy(update={"role": name})

    @property
    def is_text(self) -> bool:
        """Return whether it is asked with messages and answers with text, at a server that needs no weights of ours."""
        return self.rollout.engine == "openai" and not self.rollout.server.tokens


class PlanningConfig(Config):
    """One call of a wave: the function, and the settings by which its plan is drawn and sampled."""

    wave: WaveConfig
    """The function."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""
    curate: CurateConfig = Field(default_factory=CurateConfig)
    """Filters, ranking and sampler of the problems that it draws."""
    max_age: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Age of the stored rollouts that it may take up, updates; filled in if it reads them."""
    roles: dict[str, SampleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Sampling of rows of each role that say nothing else."""

    @property
    def tracked(self) -> Mapping[str, tuple[str, ...]]:
        """Key columns of each column of a tracker that the wave, or what draws for it, reads."""
        return self.curate.tracked

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems, plan and trackers."""
        curated = [chosen.needs for chosen in chosen_in(self.curate)]
        return round_columns(self.wave.needs, curated, tracked=self.tracked)


WAVE = Stage(
    "wave",
    "Plan further rollouts of a round from the finished ones.",
    version=1,
    makes="plan",
    settings=PlanningConfig,
    reads=lambda settings: settings.reads,
    verb=False,
    run="gradus.tasks.stages.wave:run",
)
