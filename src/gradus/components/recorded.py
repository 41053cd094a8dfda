"""Metrics that rounds record and settings may name, and the condition that one of them ends."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from gradus.components.settings import Config

Recorded = Literal[
    "policy/entropy",
    "policy/kl_ref",
    "policy/grad_norm",
    "mismatch/kl",
    "mismatch/logp_diff_mean",
    "length/mean",
    "length/max",
    "length/truncated_frac",
    "reward/mean",
    "reward/std",
    "reward/frac_zero_std_groups",
    "reward/frac_all_right",
]
"""Metrics as stages write them: figures of the rollouts of a round's first plan and of its update."""


class Until(Config):
    """A limit of a metric: what has it holds up to the first round in which the metric reaches it."""

    metric: Recorded
    """The figure."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """It is reached if the figure is at least this."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """It is reached if the figure is at most this."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> "Until":
        if (self.min is None) == (self.max is None):
            raise ValueError("until needs min or max, and not both")
        return self

    def reached(self, metrics: Mapping[str, float]) -> str:
        """Return how a round's figure reached the limit; empty if it did not, or was not measured."""
        value = metrics.get(self.metric)
        if value is None:
            return ""
        if self.min is not None and value >= self.min:
            return f"{self.metric} = {value:.4g} is at least until.min = {self.min:g}"
        if self.max is not None and value <= self.max:
            return f"{self.metric} = {value:.4g} is at most until.max = {self.max:g}"
        return ""
