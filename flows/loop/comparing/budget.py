"""The arguments of `compare`, and the budget of a training: rounds, sampled tokens or seconds after which it ends.

--budget rounds=10 | tokens=2e6 | seconds=3600
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from gradus.components.settings import Config
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean
from gradus.flows.parameters import Input, Named, Taken, methods, named, recipes_and_runs
from gradus.tasks.config.score import MARGIN

Unit = Literal["rounds", "tokens", "seconds"]
UNITS: tuple[Unit, ...] = get_args(Unit)
_MAX_AMOUNT = 10**12
POINTS = 100 * MARGIN
HOW = "write --budget rounds=10, --budget tokens=2000000 or --budget seconds=3600"


@dataclass(frozen=True)
class Asked:
    """The arguments of a comparison, and of its flow, the margin in points; UsageError if they cannot be combined."""

    recipes: Annotated[
        Sequence[Input | Named],
        Taken(
            "a recipe, several with --budget or --method, or runs that are there",
            complete=recipes_and_runs,
            argument=True,
        ),
    ]
    _: KW_ONLY
    method: Annotated[
        Sequence[str],
        Taken(
            "lay a method over each recipe, a name, a .toml or a+b; each is a row, none the recipe itself",
            complete=methods,
        ),
    ] = ()
    seeds: Annotated[
        int, Taken("trainings of each recipe; their seeds follow that of the first", least=1, most=1000)
    ] = 5
    budget: Annotated[
        str, Taken("rounds=N, tokens=N (all sampled, evaluation left out) or seconds=N; else the recipe's rounds")
    ] = ""
    set: Annotated[
        Sequence[str], Taken("a setting, key=value; a key given several times makes a method of each value")
    ] = ()
    margin: Annotated[float, Taken("points of pass@1 within which methods are equivalent", least=0.01, most=99.0)] = (
        POINTS
    )
    cluster: Annotated[str, Taken("a column of the evaluated problems: those with the same value belong together")] = ""
    tune: Annotated[
        Sequence[str], Taken("key=a,b,c: compare each recipe at the best of these; several make all combinations")
    ] = ()
    tune_seeds: Annotated[
        int, Taken("trainings of each value tried; their seeds follow those of --seeds", least=1, most=1000)
    ] = 1
    tune_on: Annotated[
        Input, Taken("tune on these problems; else on a fifth of the evaluated ones, then not judged")
    ] = ""

    def __post_init__(self) -> None:
        if not self.recipes:
            raise UsageError("there is nothing to compare", hint="name recipes, with a budget, or runs that are there")
        if min(self.seeds, self.tune_seeds) < 1 or not 0 < self.margin < 100:
            message = f"seeds = {self.seeds}, tune_seeds = {self.tune_seeds} and margin = {self.margin:g}"
            raise UsageError(message, hint="seeds from 1 on, a margin above 0 points")

    @property
    def names(self) -> list[str]:
        """The recipes and runs as texts."""
        return list(map(named, self.recipes))


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
