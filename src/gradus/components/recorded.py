"""Metrics that rounds record and settings may name, and thresholds of them."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field, model_validator

from gradus.components.settings import MAX_ROUNDS, Config

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
    """A threshold of a metric of rounds at which a phase or a wave ends."""

    metric: Recorded
    """The metric."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """The metric has to be at least this."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """The metric has to be at most this."""
    patience: int = Field(default=1, ge=1, le=MAX_ROUNDS)
    """Rounds in a row in which it has to be so."""

    @model_validator(mode="after")
    def _has_a_threshold(self) -> "Until":
        if self.min is None and self.max is None:
            raise ValueError("until needs min or max")
        return self

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Return whether a round is at the threshold; one that did not measure the metric is not."""
        value = metrics.get(self.metric)
        if value is None:
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def was_met(self, rounds: Iterable[Mapping[str, float]]) -> bool:
        """Return whether some rounds in a row of these were at the threshold, as many as its patience."""
        in_a_row = 0
        for metrics in rounds:
            in_a_row = in_a_row + 1 if self.holds(metrics) else 0
            if in_a_row == self.patience:
                return True
        return False

    def __str__(self) -> str:
        """The threshold as people read it."""
        limits = (("at least", self.min), ("at most", self.max))
        said = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        return f"{self.metric} is {said}" + (f" in {self.patience} rounds in a row" if self.patience > 1 else "")
