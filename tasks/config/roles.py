"""Models that sample beside the policy: `[roles.NAME]` of a recipe, which rows of a wave's plan name as their role."""

from pydantic import Field

from gradus.components.settings import Config, empty
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.rollout import RolloutConfig


class RoleConfig(Config):
    """One model, and how it samples; the changes of a round (`overrides`) are those of the policy's rollouts alone."""

    policy: str = Field(default="", exclude_if=empty)
    """The model, named as `policy` is, and frozen; empty for the policy that is trained, as of each round."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Its engine and prompt."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""

    @property
    def is_text(self) -> bool:
        """Return whether it is asked with messages and answers with text, at a server that needs no weights of ours."""
        return self.rollout.engine == "openai" and not self.rollout.server.tokens
