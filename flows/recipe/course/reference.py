"""Choice of the policy that the updates of a training are held to."""

from functools import partial
from operator import eq

from pydantic import Field, model_validator

from gradus.components.settings import MAX_ROUNDS, Config, empty


class ReferenceConfig(Config):
    """The reference of the updates: the starting policy unless one of these is set."""

    renew_every: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Rounds after which the newest policy becomes the reference (ProRL, arXiv 2505.24864, which renews it when
    validation stalls, and the optimiser with it)."""
    lag_rounds: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Rounds by which the reference lags behind the policy; it is the starting one at first."""
    phase: bool = Field(default=False, exclude_if=partial(eq, False))
    """The policy with which the phase began (VerIPO)."""

    @model_validator(mode="after")
    def _is_one(self) -> "ReferenceConfig":
        if sum(map(bool, (self.renew_every, self.lag_rounds, self.phase))) > 1:
            raise ValueError("renew_every, lag_rounds and phase name different policies: set one of them")
        return self

    def round_of(self, index: int, first: int) -> int:
        """Return the round whose policy a round is held to, 0 for the starting one; its phase began with `first`."""
        if self.renew_every:
            return (index - 1) // self.renew_every * self.renew_every
        if self.lag_rounds:
            return max(0, index - 1 - self.lag_rounds)
        return max(0, first - 1) if self.phase else 0

    def rounds_after(self, index: int, first: int) -> set[int]:
        """Return the rounds up to this one whose policies later rounds of the phase are held to."""
        return {self.round_of(later, first) for later in range(index + 1, index + self.lag_rounds + 2)}
