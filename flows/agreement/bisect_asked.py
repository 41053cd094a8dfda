"""The arguments of `bisect`. Imports nothing that reads runs, since the command line declares them at its start."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gradus.data.errors import UsageError, shortened
from gradus.flows.agreement.asked import AT
from gradus.flows.parameters import KNOWN_RUN, Named, Taken, check_finite, named
from gradus.tasks.inspect.agreement.labels import LABELS


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
