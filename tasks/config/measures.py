"""The stage measure: its declaration and settings."""

from collections.abc import Mapping
from functools import partial
from operator import eq
from typing import Literal

from pydantic import Field

from gradus.components.chosen import MeasureConfig
from gradus.components.settings import INCIDENTAL, MAX_ROWS, Config, empty
from gradus.components.stage import Stage
from gradus.tasks.config.prompts import PromptConfig
from gradus.tasks.config.round_columns import round_columns


class MeasuringConfig(Config):
    """One call of a measure, on the problems or on rollouts of a round."""

    measure: MeasureConfig
    """The function."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem, as the model is asked; in a recipe that of its rollouts."""
    micro_tokens: int = Field(default=16_384, ge=1, le=MAX_ROWS)
    """Tokens that go through the model at once; in a recipe that of the update, as are the number format and device."""
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", exclude_if=partial(eq, "float32"))
    """Number format of the computation."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Device on which the model computes."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems and plan."""
        return round_columns(self.measure.needs, keys=self.measure.by)


MEASURE = Stage(
    "measure",
    "Ask a frozen model about the problems or the rollouts of a round, by forward passes.",
    version=1,
    makes="measures",
    settings=MeasuringConfig,
    reads=lambda settings: settings.reads,
    draws=False,
    verb=False,
    worker="policy",
    run="gradus.tasks.stages.measure:run",
)
