"""Result of a sampler."""

from dataclasses import dataclass

from gradus.data.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Draw:
    """Rows drawn, in draw order: indices (D,), the weight each had (D,), and whether it was explored (D,)."""

    index: Ints
    weight: Floats
    explored: Bools
    in_order: bool = False
    """The rows were taken in the order of the candidates: nothing was drawn."""
