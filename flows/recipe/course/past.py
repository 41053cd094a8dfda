"""The past of a run: what its rounds recorded, from which guards, schedules and phases follow in every repetition."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from gradus.components.recorded import Recorded
from gradus.data.schedules.progress import Progress
from gradus.flows.recipe.guards import Guard, Override

RECORDED: tuple[str, ...] = get_args(Recorded)
"""Metrics of a round that guards, schedules and phases may read."""


@dataclass(frozen=True)
class Figures:
    """Record of a round: completion tokens sampled for training, and its metrics."""

    tokens: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Past:
    """The guards whose limits a run came to, each with the round in which it did, and the figures of its rounds."""

    guards: tuple[tuple[Guard, int], ...] = ()
    rounds: tuple[Figures, ...] = ()

    def after(self, tokens: int, metrics: Mapping[str, float]) -> "Past":
        """Return the past with a round more."""
        kept = {name: value for name, value in metrics.items() if name in RECORDED}
        return replace(self, rounds=(*self.rounds, Figures(tokens, kept)))

    def outside(self, guard: Guard, index: int) -> "Past":
        """Return the past with a guard whose limit a round came to."""
        return replace(self, guards=(*self.guards, (guard, index)))

    def overrides(self) -> tuple[Override, ...]:
        """Return the changes of the guards."""
        return tuple(each for guard, after in self.guards for each in guard.overrides(after))

    def known(self, index: int, overlap: int) -> tuple[Figures, ...]:
        """Return the rounds whose figures a round may read; of a run that overlaps, it is made during the last one."""
        return self.rounds[: max(0, index - 1 - overlap)]

    def progress(self, index: int, overlap: int, first: int = 1) -> Progress:
        """Return what a schedule sees in a round, with rounds and tokens counted from a first round."""
        known = self.known(index, overlap)
        metrics = {
            name: tuple(each.metrics[name] for each in known if name in each.metrics)
            for name in sorted({name for each in known for name in each.metrics})
        }
        return Progress(max(1, index - first + 1), sum(each.tokens for each in known[first - 1 :]), metrics)


NOTHING = Past()
"""The past of a run that has not begun."""
