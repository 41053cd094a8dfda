"""The past of a run: what its rounds recorded, from which guards, schedules and phases follow in every repetition."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gradus.data.schedules.progress import Progress
from gradus.flows.recipe.guards import Guard, Override

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Figures:
    """Record of a round: completion tokens sampled for training, its metrics, optimiser steps of the policy."""

    tokens: int
    metrics: Metrics
    steps: int = 0


@dataclass(frozen=True)
class Past:
    """The guards that a run breached, each with its round, and the figures of all rounds."""

    guards: tuple[tuple[Guard, int], ...] = ()
    rounds: tuple[Figures, ...] = ()
    begun: Metrics = field(default_factory=dict[str, float])
    """Metrics of the starting policy's evaluations."""

    def after(self, tokens: int, metrics: Metrics, steps: int = 0) -> "Past":
        """Return the past with one more round."""
        return replace(self, rounds=(*self.rounds, Figures(tokens, metrics, steps)))

    def evaluated(self, metrics: Metrics) -> "Past":
        """Return the past with what evaluations of the newest policy recorded."""
        if not self.rounds:
            return replace(self, begun={**self.begun, **metrics})
        newest = self.rounds[-1]
        return replace(self, rounds=(*self.rounds[:-1], replace(newest, metrics={**newest.metrics, **metrics})))

    def outside(self, guard: Guard, index: int) -> "Past":
        """Return the past with a guard that a round breached."""
        return replace(self, guards=(*self.guards, (guard, index)))

    def overrides(self) -> tuple[Override, ...]:
        """Return the changes of the guards."""
        return tuple(each for guard, after in self.guards for each in guard.overrides(after))

    def known(self, index: int, overlap: int) -> tuple[Figures, ...]:
        """Return the rounds whose figures a round may read; of a run that overlaps, it is made during the last one."""
        return self.rounds[: max(0, index - 1 - overlap)]

    def newest(self, metric: str, index: int, overlap: int) -> float | None:
        """Return the last value of a metric that a round may read; None before the first."""
        values = (each.metrics[metric] for each in reversed(self.known(index, overlap)) if metric in each.metrics)
        return next(values, self.begun.get(metric))

    def progress(self, index: int, overlap: int, first: int = 1) -> Progress:
        """Return the progress that a schedule sees in a round; rounds, tokens and steps count from a first round."""
        known = self.known(index, overlap)
        recorded = [self.begun, *(each.metrics for each in known)]
        metrics = {
            name: tuple(each[name] for each in recorded if name in each)
            for name in sorted({name for each in recorded for name in each})
        }
        own = known[first - 1 :]
        tokens, steps = sum(each.tokens for each in own), sum(each.steps for each in own)
        return Progress(max(1, index - first + 1), tokens, metrics, steps)


NOTHING = Past()
"""The past of a run that has not begun."""
