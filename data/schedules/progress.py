"""The progress of a training, as a schedule sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


class ScheduleError(ValueError):
    """A schedule whose settings make no number."""


@dataclass(frozen=True)
class Progress:
    """Facts about a training before a round; each repetition of it comes to the same."""

    round: int
    """The round that the number is for, from 1 on; in a phase's schedule counted from the phase's first round."""
    tokens: int = 0
    """Completion tokens sampled for training in the rounds before."""
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Values of each metric in the rounds before that measured it, oldest first; of a suite from the starting policy's
    on."""
    step: int = 0
    """Optimiser steps of the policy in the rounds before."""

    def newest(self, metric: str) -> float | None:
        """Return the last value of a metric; None before the first."""
        values = self.metrics.get(metric, ())
        return values[-1] if values else None
