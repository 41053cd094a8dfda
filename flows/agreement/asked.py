"""The arguments of `agree` and `bisect`. Imports nothing that reads runs: the program declares them at its start."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gradus.data.errors import UsageError, shortened
from gradus.flows.parameters import KNOWN_RUN, Input, Named, Taken, check_finite, named, runs
from gradus.tasks.inspect.agreement.labels import LABELS

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


@dataclass(frozen=True)
class BisectAsked:
    """The arguments of a bisection, called as those of its flow."""

    run: str
    auditor: Any
    beside: Sequence[Any]
    rows: int
    at: float | None


def bisect_asked(
    run: Annotated[Named | str, KNOWN_RUN],
    *,
    auditor: Annotated[
        Any, Taken("a reward as `score --reward` takes it, or a .jsonl of labels that you fill in", "--with")
    ] = "",
    beside: Annotated[
        Sequence[Any], Taken("a cheap reward: rows on which it disagrees are audited first; repeatable")
    ] = (),
    rows: Annotated[int, Taken("rows of a round to audit, at most", least=1)] = 32,
    at: Annotated[float | None, AT] = None,
) -> BisectAsked:
    """Return the arguments of a bisection; UsageError if there is no auditor, or no folder for the labels."""
    if not auditor:
        raise UsageError("there is no auditor", hint="name a reward or a file: --with math, --with labels.jsonl")
    check_finite("--at", at)
    labels = Path(auditor) if isinstance(auditor, str) and auditor.endswith(LABELS) else None
    if labels is not None and not labels.absolute().parent.is_dir():
        raise UsageError(f"--with {shortened(str(labels))}: there is no folder {labels.parent}", hint="make it first")
    return BisectAsked(named(run), auditor, tuple(beside), rows, at)
