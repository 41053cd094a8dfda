"""The arguments of `agree` and `bisect`. Imports nothing that reads runs: the program declares them at its start."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from gradus.data.errors import UsageError, shortened
from gradus.flows.parameters import KNOWN_RUN, Input, Named, Taken, check_finite, runs
from gradus.tasks.inspect.agreement.labels import LABELS

AT = Taken("a reward without a verdict of its own counts as right from this value on")


@dataclass(frozen=True)
class AgreeAsked:
    """The arguments of an agreement, and of its flow; UsageError if they cannot be combined."""

    rewards: Annotated[
        Sequence[Any],
        Taken("rewards, as `score --reward` takes them; one alone is compared with the run's own", argument=True),
    ]
    _: KW_ONLY
    rollouts: Annotated[
        Sequence[Input | Named], Taken("a run (`gradus runs`) or rollouts/DIGEST; repeatable", complete=runs)
    ] = ()
    problems: Annotated[Input, Taken("problems, where the rollouts name none")] = ""
    at: Annotated[float | None, AT] = None
    together: Annotated[
        bool, Taken("sum the rewards, as those of a run are, and compare the sum with the run's own")
    ] = False

    def __post_init__(self) -> None:
        if not self.rewards:
            raise UsageError(
                "there is no reward to compare", hint="name one or more: gradus agree numeric math --rollouts RUN"
            )
        if not self.rollouts:
            raise UsageError(
                "there are no rollouts to judge", hint="name a run or rollouts: --rollouts RUN (`gradus runs`)"
            )
        check_finite("--at", self.at)
        if self.together and len(self.rollouts) > 1:
            raise UsageError("--together compares with the rewards of one run", hint="name one: --rollouts RUN")


@dataclass(frozen=True)
class BisectAsked:
    """The arguments of a bisection, and of its flow; UsageError without an auditor, or a folder for the labels."""

    run: Annotated[Named | str, KNOWN_RUN]
    _: KW_ONLY
    auditor: Annotated[
        Any, Taken("a reward as `score --reward` takes it, or a .jsonl of labels that you fill in", "--with")
    ] = ""
    beside: Annotated[
        Sequence[Any], Taken("a cheap reward: rows on which it disagrees are audited first; repeatable")
    ] = ()
    rows: Annotated[int, Taken("rows of a round to audit, at most", least=1)] = 32
    at: Annotated[float | None, AT] = None

    def __post_init__(self) -> None:
        if not self.auditor:
            raise UsageError("there is no auditor", hint="name a reward or a file: --with math, --with labels.jsonl")
        check_finite("--at", self.at)
        labels = Path(self.auditor) if isinstance(self.auditor, str) and self.auditor.endswith(LABELS) else None
        if labels is not None and not labels.absolute().parent.is_dir():
            message = f"--with {shortened(str(labels))}: there is no folder {labels.parent}"
            raise UsageError(message, hint="make it first")
