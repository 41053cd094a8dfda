"""The arguments of `lab`. Imports nothing that reads runs, since the command line declares them at its start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from gradus.data.errors import UsageError
from gradus.flows.loop.comparing.budget import HOW
from gradus.flows.parameters import Input, Named, Taken, methods, named, runs


@dataclass(frozen=True)
class LabAsked:
    """The arguments of a laboratory, called as those of its flow."""

    runs: Sequence[str]
    method: Sequence[str]
    every: bool
    rounds: int
    ages: str
    set: Sequence[str]
    then: str
    seeds: int
    budget: str


def lab_asked(
    runs: Annotated[
        Sequence[Input | Named], Taken("trainings that are there (`gradus runs`)", complete=runs, argument=True)
    ],
    *,
    method: Annotated[
        Sequence[str],
        Taken("lay a method over each run, a name, a .toml or a+b; the run itself is always there", complete=methods),
    ] = (),
    every: Annotated[bool, Taken("lay every method over it that changes the objective", "--all")] = False,
    rounds: Annotated[int, Taken("stored rounds to look at, spread evenly over a run", least=1, most=10_000)] = 4,
    ages: Annotated[
        str, Taken("updates between the policy that sampled and that whose gradient is taken, as 0,1,4")
    ] = "0,1",
    set: Annotated[  # noqa: A002 - called as on the command line
        Sequence[str], Taken("a setting of all methods, key=value; repeatable", "--set")
    ] = (),
    then: Annotated[str, Taken("compare: train the better half, and halve again at each doubling of the budget")] = "",
    seeds: Annotated[int, Taken("trainings of each method that is compared", least=1, most=1000)] = 5,
    budget: Annotated[str, Taken("budget of the last comparison: rounds=N, tokens=N or seconds=N")] = "",
) -> LabAsked:
    """Return the arguments of a laboratory; UsageError if they cannot be combined."""
    names = list(map(named, runs))
    if not names:
        raise UsageError("there is no run to look at", hint="name one: gradus lab RUN --method gspo (`gradus runs`)")
    if not (method or every):
        raise UsageError(
            "there is no method to lay over the run", hint="name some: --method gspo --method cispo; or give --all"
        )
    if then not in ("", "compare"):
        raise UsageError(f"--then {then}: there is no such step", hint="write --then compare, with --budget tokens=N")
    if budget and not then:
        raise UsageError("--budget is that of a comparison", hint="add --then compare")
    if then and not budget:
        raise UsageError("--then compare needs a budget", hint=HOW)
    return LabAsked(names, tuple(method), every, rounds, ages, tuple(set), then, seeds, budget)
