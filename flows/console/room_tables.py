"""The output of `gradus prune` and `gradus restore`."""

from typing import TypedDict

from gradus.flows.console.output import line, table
from gradus.tasks.formats import short, size


class FreedCheckpoint(TypedDict):
    """A checkpoint that lost something, and the updates and seconds that having it back takes."""

    round: int
    checkpoint: str
    lost: str
    bytes: int
    updates: int
    seconds: float
    repeats: bool
    """True if it can be restored."""


class Freed(TypedDict):
    """The result of pruning a run, done or foreseen; `spared` are checkpoints that other runs have too."""

    run: str
    bytes: int
    checkpoints: list[FreedCheckpoint]
    spared: list[str]
    done: bool


class Deleted(TypedDict):
    """The result of deleting a run, done or foreseen: artifacts by table; `staying` are those of other runs too."""

    run: str
    bytes: int
    artifacts: dict[str, int]
    staying: int
    done: bool


class Restored(TypedDict):
    """The cost of restoring a checkpoint, done or foreseen."""

    checkpoint: str
    updates: int
    seconds: float
    done: bool


def render_freed(result: Freed) -> None:
    """A line for each checkpoint, then the sum."""
    rows = [(c["round"], short(c["checkpoint"]), c["lost"], size(c["bytes"]), _back(c)) for c in result["checkpoints"]]
    if rows:
        table("pruned" if result["done"] else "to be pruned", ("round", "checkpoint", "loses", "size", "back by"), rows)
    if result["spared"]:
        line(f"{len(result['spared'])} checkpoints stay because other runs have them too")
    verb = "freed" if result["done"] else "would be freed"
    line(f"{size(result['bytes'])} {verb}" if rows else "there is nothing to prune")


def render_deleted(result: Deleted) -> None:
    """Print what is deleted and what stays."""
    verb = "deleted" if result["done"] else "to be deleted"
    counts = ", ".join(f"{count} {table}" for table, count in result["artifacts"].items()) or "no artifacts"
    line(f"{verb}: run {result['run']} with its journal, logs and rows in MLflow; {counts}; {size(result['bytes'])}")
    if result["staying"]:
        line(f"{result['staying']} of its artifacts stay because other runs have them too")


def render_restored(result: Restored) -> None:
    """One sentence."""
    if result["done"]:
        line(f"{result['checkpoint']} is back, with the bytes that it had")
    elif not result["updates"]:
        line(f"{result['checkpoint']} is there, weights and train state")
    else:
        line(f"{result['checkpoint']} takes {_updates(result['updates'])}, about {result['seconds']:.0f} s")


def _back(checkpoint: FreedCheckpoint) -> str:
    if not checkpoint["repeats"]:
        return "nothing: other bits each time"
    return f"{_updates(checkpoint['updates'])}, {checkpoint['seconds']:.0f} s"


def _updates(number: int) -> str:
    return f"{number} update" if number == 1 else f"{number} updates"
