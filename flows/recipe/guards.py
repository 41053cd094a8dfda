"""Changes of settings by round: overrides, and guards, which change settings once a round is outside their limits.

[[guards]]
metric = "policy/entropy"
min = 0.05
then = "back"                      # to the best policy so far, and on with
changes = { "update.lr" = 3e-5 }
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from gradus.components.settings import MAX_ROUNDS, Config, empty
from gradus.tasks.config.score import ScoreConfig


class Override(Config):
    """A change of one stage's settings (what `gradus rerun --set` writes): in one round, from one on, or in all."""

    stage: str
    """Name of the stage."""
    round: int | None = Field(default=None, ge=0, le=MAX_ROUNDS)
    """The round; none for all, or for those from `from_round` on."""
    from_round: int = Field(default=0, ge=0, le=MAX_ROUNDS + 1, exclude_if=empty)
    """The first round with the change."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Dotted key -> value."""

    @model_validator(mode="after")
    def _names_rounds_once(self) -> "Override":
        if self.round is not None and self.from_round:
            raise ValueError("round and from_round exclude each other")
        return self

    @property
    def first_round(self) -> int:
        """The first round in which the change holds."""
        return self.from_round if self.round is None else self.round

    def holds_in(self, index: int) -> bool:
        """Return whether the change holds in a round."""
        return index >= self.from_round if self.round is None else index == self.round


class Guard(Config):
    """One limit, checked in every round: on rollouts and rewards before the update, on its own figures after it."""

    metric: str
    """The figure: of every round, of an evaluation suite, or the mean of a column of a tracker."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """The round is outside if the figure is below this."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """The round is outside if the figure is above this."""
    from_round: int = Field(default=1, ge=1, le=MAX_ROUNDS)
    """The first round that is looked at."""
    then: Literal["stop", "back"] = "stop"
    """stop ends the run; back continues from the best policy so far with `changes`."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Settings of the rounds after going back, STAGE.KEY = value."""
    times: int = Field(default=1, ge=1, le=MAX_ROUNDS)
    """Maximum number of times that this guard sends the run back; after that it stops."""

    @model_validator(mode="after")
    def _can_be_kept(self) -> "Guard":
        if self.min is None and self.max is None:
            raise ValueError("a guard needs min or max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min:g} is above max = {self.max:g}, so that every round is outside")
        if self.then == "back" and not self.changes:
            raise ValueError("a guard that goes back needs changes: the same settings lead to the same place")
        if self.then == "stop" and self.changes:
            raise ValueError('changes need then = "back"')
        by_stage(self.changes)
        return self

    def outside(self, metrics: Mapping[str, float]) -> str:
        """Return the breach of the limits in words; empty if there is none, or the figure was not measured."""
        if (value := metrics.get(self.metric)) is None:
            return ""
        if self.min is not None and value < self.min:
            return f"{self.metric} = {value:.4g} is below the guard's min = {self.min:g}"
        if self.max is not None and value > self.max:
            return f"{self.metric} = {value:.4g} is above the guard's max = {self.max:g}"
        return ""

    def overrides(self, after: int) -> tuple[Override, ...]:
        """Return the changes, which hold in the rounds after one."""
        return tuple(
            Override(stage=stage, from_round=after + 1, changes=changes)
            for stage, changes in by_stage(self.changes).items()
        )


def by_stage(changes: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return changes written as STAGE.KEY by stage; raise ValueError for one that is not."""
    found: dict[str, dict[str, object]] = {}
    for name, value in changes.items():
        stage, key = stage_of(name)
        if not stage or not key:
            raise ValueError("changes are written as STAGE.KEY, for example update.lr")
        found.setdefault(stage, {})[key] = value
    return found


def stage_of(name: str) -> tuple[str, str]:
    """Return the stage and the key of a setting that a recipe writes as STAGE.KEY; roles and uses have two names.

    >>> stage_of("update.lr"), stage_of("roles.judge.update.lr"), stage_of("score.rewards.0.weight")
    (('update', 'lr'), ('roles.judge', 'update.lr'), ('score', 'rewards.0.weight'))
    """
    stage, _, key = name.partition(".")
    own, _, rest = key.partition(".")
    if rest and (stage == "roles" or (stage == "score" and own not in ScoreConfig.model_fields)):
        return f"{stage}.{own}", rest
    return stage, key


def first_outside(guards: Sequence[Guard], index: int, metrics: Mapping[str, float]) -> tuple[Guard, str] | None:
    """Return the first guard that a round breaches, with its message."""
    for guard in guards:
        if index >= guard.from_round and (sentence := guard.outside(metrics)):
            return guard, f"round {index}: {sentence}"
    return None
