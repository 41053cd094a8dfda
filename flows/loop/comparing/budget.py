"""The arguments of `compare`, and the budget of a training: rounds, sampled tokens or seconds after which it ends.

--budget rounds=10 | tokens=2e6 | seconds=3600
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from gradus.components.settings import Config
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean

Unit = Literal["rounds", "tokens", "seconds"]
UNITS: tuple[Unit, ...] = get_args(Unit)
_MAX_AMOUNT = 10**12
HOW = "write --budget rounds=10, --budget tokens=2000000 or --budget seconds=3600"


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


class Budget(Config):
    """Budget of a training. It ends after the round in which the budget is reached; evaluation does not count."""

    unit: Unit
    """Unit of the budget: rounds, completion tokens sampled, or seconds of stages."""
    amount: int = Field(ge=1, le=_MAX_AMOUNT)
    """Amount at which a training ends."""

    def is_reached(self, rounds: int, tokens: int, seconds: float) -> bool:
        """Return whether a training with these rounds, tokens and seconds has reached the budget."""
        return {"rounds": rounds, "tokens": tokens, "seconds": seconds}[self.unit] >= self.amount

    def left(self, tokens: int) -> int | None:
        """Return the tokens that a training with these has left, 0 at least; None for a budget in another unit."""
        return max(0, self.amount - tokens) if self.unit == "tokens" else None

    def __str__(self) -> str:
        """Return the budget in words."""
        return f"{self.amount:,} {self.unit}"


def parse_budget(text: str) -> Budget:
    """Read `rounds=10`; UsageError for another unit or an amount that is not a positive whole number."""
    unit, _, amount = (part.strip() for part in text.partition("="))
    if unit not in UNITS:
        raise UsageError(f"--budget {shortened(text)}: there is no such budget", hint=did_you_mean(unit, UNITS, HOW))
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    if not 1 <= number <= _MAX_AMOUNT or not number.is_integer():
        most = f"it is no whole number from 1 on, or more than {_MAX_AMOUNT:,}"
        raise UsageError(f"--budget {shortened(text)}: {most}", hint=HOW)
    return Budget(unit=unit, amount=int(number))
