"""Beginning and outcome of a training."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradus.data.lake.store import Ref
from gradus.flows.loop.measuring import Choice, Figures


@dataclass(frozen=True)
class Trained:
    """Result of a training run: its rounds, its last and best policy, the figures of the reported suites by name.

    Without a choice the best policy is the last one. `stopped` is the sentence of the guard, or of the rounds without
    signal, that ended the run, with the round of the best policy as `best_round`; there are no figures then.
    """

    rounds: int
    policy: Ref
    best: Ref
    best_round: int
    figures: Mapping[str, Figures]
    choice: Choice | None
    remarks: tuple[str, ...] = ()
    stopped: str = ""
    skipped: tuple[int, ...] = ()
    """Rounds without signal, whose update was skipped."""


@dataclass(frozen=True)
class Beginning:
    """Inputs with which a training run starts."""

    policy: Ref
    problems: Ref
    suites: Mapping[str, Ref]
    """Problems of each evaluation suite by its name."""
    teacher: Ref | None = None
    remarks: tuple[str, ...] = ()
    """Warnings to print beside the figures: evaluated problems that are trained on."""
    trackers: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """Rows that trackers begin with, by their names."""
    roles: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """Frozen models by role."""
