"""The arguments of `agree`. Imports nothing that reads runs, since the command line declares them at its start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from gradus.data.errors import UsageError
from gradus.flows.parameters import Input, Named, Taken, check_finite, named, runs

AT = Taken("a reward without a verdict of its own counts as right from this value on")


@dataclass(frozen=True)
class AgreeAsked:
    """The arguments of an agreement, called as those of its flow."""

    rewards: Sequence[Any]
    rollouts: Sequence[str]
    problems: str
    at: float | None
    together: bool


def agree_asked(
    rewards: Annotated[
        Sequence[Any],
        Taken("rewards, as `score --reward` takes them; one alone is compared with the run's own", argument=True),
    ],
    *,
    rollouts: Annotated[
        Sequence[Input | Named], Taken("a run (`gradus runs`) or rollouts/DIGEST; repeatable", complete=runs)
    ] = (),
    problems: Annotated[Input, Taken("problems, where the rollouts name none")] = "",
    at: Annotated[float | None, AT] = None,
    together: Annotated[
        bool, Taken("sum the rewards, as those of a run are, and compare the sum with the run's own")
    ] = False,
) -> AgreeAsked:
    """Return the arguments of an agreement; UsageError if they cannot be combined."""
    names = list(map(named, rollouts))
    if not rewards:
        raise UsageError(
            "there is no reward to compare", hint="name one or more: gradus agree numeric math --rollouts RUN"
        )
    if not names:
        raise UsageError(
            "there are no rollouts to judge", hint="name a run or rollouts: --rollouts RUN (`gradus runs`)"
        )
    check_finite("--at", at)
    if together and len(names) > 1:
        raise UsageError("--together compares with the rewards of one run", hint="name one: --rollouts RUN")
    return AgreeAsked(tuple(rewards), tuple(dict.fromkeys(names)), named(problems), at, together)
