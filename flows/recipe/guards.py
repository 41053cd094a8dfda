"""Guards of a training run: limits on what its rounds measure, and what happens outside of them.

[[guards]]
metric = "policy/entropy"
min = 0.05
then = "back"                      # to the best policy so far, and on with
changes = { "update.lr" = 3e-5 }
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from gradus.components.settings import MAX_ROUNDS, Config

Guarded = Literal[
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
"""What a guard may look at, as stages write it: figures of a round's own rollouts and of its update."""


class Guard(Config):
    """One limit: on rollouts and rewards looked at before the update of every round, on the update's figures after."""

    metric: Guarded
    """The figure."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """The round is outside if the figure is below this."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """The round is outside if the figure is above this."""
    from_round: int = Field(default=1, ge=1, le=MAX_ROUNDS)
    """The first round that is looked at."""
    then: Literal["stop", "back"] = "stop"
    """stop ends the run; back goes on from the best policy so far with `changes`."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Settings of the rounds after going back, STAGE.KEY = value."""
    times: int = Field(default=1, ge=1, le=MAX_ROUNDS)
    """How often the run goes back because of this guard; after that it stops."""

    @model_validator(mode="after")
    def _can_be_kept(self) -> "Guard":
        if self.min is None and self.max is None:
            raise ValueError("a guard needs min or max")
        if self.then == "back" and not self.changes:
            raise ValueError("a guard that goes back needs changes: the same settings lead to the same place")
        if self.then == "stop" and self.changes:
            raise ValueError('changes need then = "back"')
        if any(not stage or not key for stage, _, key in (name.partition(".") for name in self.changes)):
            raise ValueError("changes are written as STAGE.KEY, for example update.lr")
        return self

    def outside(self, metrics: Mapping[str, float]) -> str:
        """Return how a round's figure is outside; empty if it is within the limits, or was not measured."""
        value = metrics.get(self.metric)
        if value is None:
            return ""
        if self.min is not None and value < self.min:
            return f"{self.metric} = {value:.4g} is below the guard's min = {self.min:g}"
        if self.max is not None and value > self.max:
            return f"{self.metric} = {value:.4g} is above the guard's max = {self.max:g}"
        return ""

    def by_stage(self) -> dict[str, dict[str, object]]:
        """Return the changes by stage."""
        found: dict[str, dict[str, object]] = {}
        for name, value in self.changes.items():
            stage, _, key = name.partition(".")
            found.setdefault(stage, {})[key] = value
        return found


def first_outside(guards: Sequence[Guard], index: int, metrics: Mapping[str, float]) -> tuple[Guard, str] | None:
    """Return the first guard that a round is outside of, with the sentence about it."""
    for guard in guards:
        if index >= guard.from_round and (sentence := guard.outside(metrics)):
            return guard, f"round {index}: {sentence}"
    return None
