"""Settings of the stages that decide what is sampled next: curate, hint, escalate, difficulty."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gradus.components.chosen import (
    FilterConfig,
    HintStrategyConfig,
    RankingConfig,
    SamplerConfig,
    none_if_empty,
)
from gradus.components.settings import LIMIT, MAX_ROUNDS, MAX_ROWS, Config, empty
from gradus.data.lake.schema import MAX_SAMPLES, MAX_TEMPERATURE, MAX_TOKENS
from gradus.tasks.config.prompts import PromptConfig

MAX_LEVEL = 1000
"""Levels of hints at most."""


class SampleConfig(Config):
    """How completions are sampled."""

    n: int = Field(default=8, ge=1, le=MAX_SAMPLES)
    """Completions per group."""
    temperature: float = Field(default=1.0, ge=0.0, le=MAX_TEMPERATURE)
    """Sampling temperature; 0 is greedy."""
    max_tokens: int = Field(default=96, ge=1, le=MAX_TOKENS)
    """Limit of completion tokens."""


class CurateConfig(Config):
    """Which problems, in which order, into a plan."""

    filters: tuple[FilterConfig, ...] = ()
    """Filters applied in order; a row is dropped by the first that refuses it."""
    rank: Annotated[RankingConfig | None, BeforeValidator(none_if_empty)] = None
    """Rank by this component, highest first, before `top`; none keeps the order of the problems."""
    top: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Problems kept after ranking, from the first; 0 for all."""
    sampler: SamplerConfig = Field(default_factory=SamplerConfig.usual)
    """Draw problems: all in order, uniform, or variance (in proportion to pass-rate variance)."""
    draw: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Problems to draw; 0 takes all that are left."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """How each planned problem is sampled."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """How a problem becomes the prompt that the filter prompt_tokens counts; in a recipe that of the rollouts."""
    round: int = Field(default=0, ge=0, le=MAX_ROUNDS)
    """Round of the run; part of every group id."""

    @property
    def counts_tokens(self) -> bool:
        """Whether a filter reads how many tokens of a policy the prompts have."""
        return any(chosen.name == "prompt_tokens" for chosen in self.filters)


class EscalateConfig(Config):
    """A plan for the groups whose every rollout failed, one hint level up (GHPO, arXiv 2507.10628)."""

    level: int = Field(ge=1, le=MAX_LEVEL)
    """Hint level to show."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """How each group is sampled again."""


class HintConfig(Config):
    """How hints are built from worked solutions."""

    strategy: HintStrategyConfig = Field(default_factory=HintStrategyConfig.usual)
    """prefix: the first steps of the solution; tiers: hints that are in the source."""
    fractions: tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...] = (0.25, 0.5, 0.75)
    """Share of the solution's steps shown at level 1, 2, 3 ..."""


class DifficultyConfig(Config):
    """How scores become a difficulty table (added to the previous one where given)."""

    round: int = Field(default=0, ge=0, le=MAX_ROUNDS)
    """Round of these measurements."""
    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of the rollouts counted without a verdict fails the stage; 1 accepts rewards alone."""
