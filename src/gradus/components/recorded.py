"""Metrics that rounds record and settings may name, and the ends that follow them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from gradus.components.settings import MAX_ROUNDS, Config, unset

RECORDED = (
    *("policy/entropy", "policy/kl_ref", "policy/grad_norm", "mismatch/kl", "mismatch/logp_diff_mean"),
    *("length/mean", "length/max", "length/truncated_frac"),
    *("reward/mean", "reward/std", "reward/frac_zero_std_groups", "reward/frac_all_right"),
)
"""Metrics of every recipe, as stages write them: figures of the rollouts of a round's first plan and of its update."""
OF_SUITES = "eval/"
"""Beginning of the metrics of evaluation suites."""


@dataclass(frozen=True)
class Streak:
    """Rounds in a row, up to the newest, that were at an end's threshold."""

    length: int = 0
    best: float | None = None
    """The highest value so far, or the lowest where no fall is looked for."""


class Until(Config):
    """An end of a phase or a wave: a threshold of a metric of rounds, or a metric that no longer rises or falls."""

    metric: str
    """The metric: of every round, of an evaluation suite (eval/SUITE/pass_at_1), or the mean of a column of a tracker
    (TRACKER.COLUMN)."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """The metric has to be at least this."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """The metric has to be at most this."""
    without: Literal["rise", "fall"] | None = Field(default=None, exclude_if=unset)
    """The metric must not be above (below) all its values before: of the phase, with the one that it began with, or of
    the training for a wave."""
    patience: int = Field(default=1, ge=1, le=MAX_ROUNDS)
    """Rounds in a row in which it has to be so; of a suite only rounds after which it was evaluated count."""

    @model_validator(mode="after")
    def _has_a_threshold(self) -> "Until":
        if self.min is None and self.max is None and self.without is None:
            raise ValueError("until needs min or max, or without")
        return self

    def streak(self, before: Streak, metrics: Mapping[str, float]) -> Streak:
        """Return the rounds in a row after one more; one that did not measure its metric is not at the threshold."""
        if (value := metrics.get(self.metric)) is None:
            return before if self.metric.startswith(OF_SUITES) else Streak(0, before.best)
        better = before.best is None or (value < before.best if self.without == "fall" else value > before.best)
        holds = (self.min is None or value >= self.min) and (self.max is None or value <= self.max)
        holds = holds and not (self.without and better)
        return Streak(before.length + 1 if holds else 0, value if better else before.best)

    def was_met(self, rounds: Iterable[Mapping[str, float]], begun: float | None = None) -> bool:
        """Return whether as many rounds in a row as its patience were at the threshold; `begun` is the value before."""
        streak = Streak(0, begun)
        for metrics in rounds:
            streak = self.streak(streak, metrics)
            if streak.length == self.patience:
                return True
        return False

    def __str__(self) -> str:
        """The end as people read it."""
        limits = (("at least", self.min), ("at most", self.max))
        said = [f"is {word} {limit:g}" for word, limit in limits if limit is not None]
        said += [f"is without a {self.without}"] if self.without else []
        counted = "evaluations" if self.metric.startswith(OF_SUITES) else "rounds"
        row = f" in {self.patience} {counted} in a row" if self.patience > 1 else ""
        return f"{self.metric} {' and '.join(said).replace(' and is', ' and')}{row}"
