"""Memory of a run from one round to the next, by artifact; a guard that goes back restores it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from gradus.components.chosen import WaveConfig
from gradus.data.lake.store import Ref
from gradus.tasks.config.waves import PlanningConfig


class Round(Protocol):
    """Rollouts of a round and their scores."""

    @property
    def rollouts(self) -> list[Ref]:
        """Artifacts of its waves."""
        ...

    @property
    def scores(self) -> list[Ref]:
        """The scores of each."""
        ...


Rounds: TypeAlias = Sequence[Round]


@dataclass(frozen=True)
class Memory:
    """The difficulty of the problems, the rows of each tracker by its name, and the rounds so far."""

    difficulty: Ref | None = None
    trackers: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    earlier: Rounds = ()
    """The rounds before, whose rollouts waves may take up again."""

    ended: frozenset[str] = frozenset()
    """Waves that no round has any more."""

    def after(self, learned: Round, ended: frozenset[str]) -> "Memory":
        """Return the memory with a round more that was learned from, and the waves that have ended by now."""
        return replace(self, earlier=(*self.earlier, learned), ended=ended)

    def going(self, waves: Sequence[WaveConfig]) -> Iterator[tuple[int, WaveConfig]]:
        """Yield the waves that have not ended, with their numbers from 1."""
        return ((number, wave) for number, wave in enumerate(waves, start=1) if wave.short not in self.ended)

    def ending(
        self, waves: Sequence[WaveConfig], metrics: Mapping[str, float], where: str, say: Callable[[str], None]
    ) -> "Memory":
        """Return the memory without the waves that a round's metrics end, and say which and why."""
        going = (wave for _, wave in self.going(waves))
        reached = {wave.short: said for wave in going if wave.until and (said := wave.until.reached(metrics))}
        for name, sentence in reached.items():
            say(f"{where}: {sentence}: the wave {name} has ended")
        return replace(self, ended=self.ended | reached.keys())

    def kept(self, columns: Iterable[str]) -> list[Ref]:
        """Return the rows of the trackers to which these columns belong, NAME.COLUMN, in the order of the recipe."""
        names = {column.partition(".")[0] for column in columns}
        return [ref for name, ref in self.trackers.items() if name in names]


def stored_inputs(config: PlanningConfig, policy: Ref, earlier: Rounds) -> dict[str, list[Ref]]:
    """Return the rollouts of the last `max_age` rounds, their scores, and the policy from which age is counted."""
    if not config.wave.reads_stored:
        return {"stored_rollouts": []}
    rounds = earlier[max(0, len(earlier) - config.max_age) :]
    return {
        "stored_rollouts": [ref for each in rounds for ref in each.rollouts],
        "stored_scores": [ref for each in rounds for ref in each.scores],
        "sampler": [policy],
    }
