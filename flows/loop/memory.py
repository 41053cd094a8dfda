"""Memory of a run from one round to the next, by artifact; a guard that goes back restores it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gradus.data.lake.store import Ref
from gradus.flows.loop.stored import Round, Rounds


@dataclass(frozen=True)
class Memory:
    """The difficulty of the problems, the rows of each tracker by its name, and the rounds so far."""

    difficulty: Ref | None = None
    trackers: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    earlier: Rounds = ()
    """The rounds before, whose rollouts waves may take up again."""

    def after(self, learned: Round) -> "Memory":
        """Return the memory with a round more that was learned from."""
        return replace(self, earlier=(*self.earlier, learned))

    def kept(self, columns: Iterable[str]) -> list[Ref]:
        """Return the rows of the trackers to which these columns belong, NAME.COLUMN, in the order of the recipe."""
        names = {column.partition(".")[0] for column in columns}
        return [ref for name, ref in self.trackers.items() if name in names]
