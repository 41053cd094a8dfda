"""Settings of the stage that turns worked solutions into rows of an update."""

from pydantic import Field, field_validator

from gradus.data.lake.schema import OWN
from gradus.tasks.config.base import Config
from gradus.tasks.config.prompts import PromptConfig, empty


class GivenConfig(Config):
    """Worked solutions of the training problems, as rows that every update learns from, too."""

    origin: str = Field(default="expert", min_length=1)
    """Origin of the rows; update.origin_losses names the loss that they take."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """How a problem becomes a prompt; in a recipe that of the rollouts."""

    @field_validator("origin")
    @classmethod
    def _is_not_the_policy(cls, origin: str) -> str:
        if origin == OWN:
            raise ValueError(f"{OWN!r} is the origin of what the policy itself writes")
        return origin
