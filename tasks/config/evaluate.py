"""Settings of the stage evaluate."""

from typing import Annotated

from pydantic import Field

from gradus.tasks.config.base import LIMIT, Config


class EvaluateConfig(Config):
    """What is computed from the scored rollouts of one policy on one problem set."""

    suite: str = "heldout"
    """Name of the problem set."""
    ks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 8), min_length=1)
    """The k of pass@k."""
    bootstrap: int = Field(default=2000, ge=1)
    """Bootstrap resamples of problems."""
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    """Coverage of the intervals."""
    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of rollouts without a verdict fails the stage; 1 accepts an evaluation of rewards alone."""
