"""The arguments of `lab`. Imports nothing that reads runs, since the command line declares them at its start."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from gradus.data.errors import UsageError
from gradus.flows import parameters
from gradus.flows.loop.comparing.budget import HOW
from gradus.flows.parameters import Input, Named, Taken, methods


@dataclass(frozen=True)
class LabAsked:
    """The arguments of a laboratory, and of its flow; UsageError if they cannot be combined."""

    runs: Annotated[
        Sequence[Input | Named],
        Taken("trainings that are there (`gradus runs`)", complete=parameters.runs, argument=True),
    ]
    _: KW_ONLY
    method: Annotated[
        Sequence[str],
        Taken("lay a method over each run, a name, a .toml or a+b; the run itself is always there", complete=methods),
    ] = ()
    every: Annotated[bool, Taken("lay every method over it that changes the objective", "--all")] = False
    rounds: Annotated[int, Taken("stored rounds to look at, spread evenly over a run", least=1, most=10_000)] = 4
    ages: Annotated[
        str, Taken("updates between the policy that sampled and that whose gradient is taken, as 0,1,4")
    ] = "0,1"
    set: Annotated[Sequence[str], Taken("a setting of all methods, key=value; repeatable", "--set")] = ()
    then: Annotated[str, Taken("compare: train the better half, and halve again at each doubling of the budget")] = ""
    seeds: Annotated[int, Taken("trainings of each method that is compared", least=1, most=1000)] = 5
    budget: Annotated[str, Taken("budget of the last comparison: rounds=N, tokens=N or seconds=N")] = ""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UsageError(
                "there is no run to look at", hint="name one: gradus lab RUN --method gspo (`gradus runs`)"
            )
        if not (self.method or self.every):
            raise UsageError(
                "there is no method to lay over the run", hint="name some: --method gspo --method cispo; or give --all"
            )
        if self.then not in ("", "compare"):
            raise UsageError(
                f"--then {self.then}: there is no such step", hint="write --then compare, with --budget tokens=N"
            )
        if self.budget and not self.then:
            raise UsageError("--budget is that of a comparison", hint="add --then compare")
        if self.then and not self.budget:
            raise UsageError("--then compare needs a budget", hint=HOW)
