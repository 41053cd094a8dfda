"""The arguments of `compare`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """The arguments of a comparison, called as those of its flow; the margin in points."""

    recipes: Sequence[str]
    budget: str
    seeds: int
    set: Sequence[str]
    margin: float
    cluster: str
    tune: Sequence[str] = ()
    tune_seeds: int = 1
    tune_on: str = ""
    method: Sequence[str] = ()
    """Methods laid over each recipe, each a row of its own; `a+b` both in one row, `none` the recipe itself."""
