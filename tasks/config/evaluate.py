"""The stage evaluate: its declaration and its settings."""

from typing import Annotated

from pydantic import Field

from gradus.components.settings import LIMIT, Config
from gradus.components.stage import Stage
from gradus.data.lake.schema import MAX_SAMPLES

MARGIN = 0.02
"""Differences of pass@1 below this do not matter unless another margin is given: ten problems of 500."""


class EvaluateConfig(Config):
    """Figures to compute from the scored rollouts of one policy on one problem set."""

    ks: tuple[Annotated[int, Field(ge=1, le=MAX_SAMPLES)], ...] = Field(default=(1, 8), min_length=1)
    """The k of pass@k."""
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    """Coverage of the intervals."""
    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of rollouts without a verdict fails the stage; 1 accepts an evaluation of rewards alone."""


EVALUATE = Stage(
    "evaluate",
    "Compute the pass rates of a policy, with intervals.",
    version=6,
    makes="evaluations",
    settings=EvaluateConfig,
    verb=False,
    gate="gradus.tasks.stages.gates:verdict_breach",
    run="gradus.tasks.stages.evaluate:run",
)
