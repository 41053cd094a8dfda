"""Retention of the checkpoints of a training."""

from collections.abc import Iterable

from pydantic import Field

from gradus.components.settings import MAX_ROUNDS, Config
from gradus.data.errors import UsageError


class KeepConfig(Config):
    """Checkpoints that keep their weights; every checkpoint keeps its manifest, and can be computed again."""

    last: int = Field(default=2, ge=1, le=MAX_ROUNDS)
    """Those of the last N rounds; the newest keeps its train state too."""
    every: int = Field(default=0, ge=0, le=MAX_ROUNDS)
    """And those of every N-th round, with their train states; 0 for none."""
    best: bool = True
    """The best one, by the selection suite or by the only one."""

    def weights(self, rounds: Iterable[int], best: int | None) -> set[int]:
        """Return which of the rounds keep their weights."""
        known = sorted(rounds)
        return {*known[-self.last :], *self.landmarks(known), *({best} if self.best and best is not None else ())}

    def states(self, rounds: Iterable[int]) -> set[int]:
        """Return which of the rounds keep their train states."""
        known = sorted(rounds)
        return {*known[-1:], *self.landmarks(known)}

    def landmarks(self, rounds: Iterable[int]) -> set[int]:
        """Return those of every N-th round."""
        return {index for index in rounds if self.every and index % self.every == 0}


def read_keep(text: str) -> KeepConfig:
    """Read `last=2,every=5,best`; best is left out where the text does not name it. UsageError if it is wrong."""
    found: dict[str, int | bool] = {"best": False}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if part == "best":
            found["best"] = True
        elif name in ("last", "every") and value.isdigit() and int(value) > 0:
            found[name] = int(value)
        else:
            raise UsageError(f"--keep {part!r} names no checkpoints", hint="write --keep last=2,every=5,best")
    return KeepConfig.model_validate(found)
