"""Inputs and outcome of a training, the results of its rounds, and its memory from one to the next, by artifact."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gradus.data.lake.store import Ref
from gradus.flows.console.answers import SuiteFigures
from gradus.flows.loop.measuring import Choice

Columns: TypeAlias = Callable[[Iterable[str]], list[Ref]]
"""Function that returns the tables of trackers and measures which have the columns, NAME.COLUMN, of a round's rows."""


@dataclass(frozen=True)
class Sampled:
    """Rollouts of one role for one use, and their scores if they are judged."""

    role: str
    use: str
    rollouts: Ref
    scores: Sequence[Ref]
    tokens: int
    """Completion tokens that were generated."""
    num_rollouts: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Figures of both stages."""


def tables(made: Sequence[Sampled], *, role: str = "", use: str = "") -> dict[str, list[Ref]]:
    """Return rollouts and scores by table: all, or those of a role or a use."""
    kept = [each for each in made if role in ("", each.role) and use in ("", each.use)]
    return {"rollouts": [each.rollouts for each in kept], "scores": [ref for each in kept for ref in each.scores]}


@dataclass(frozen=True)
class Stored:
    """Rollouts of a round, or of an earlier run, that waves may take up again."""

    rollouts: list[Ref]
    scores: list[Ref]
    """The scores of each."""
    problems: Ref
    """The problems that the round drew from; of an earlier run those that the training draws from first."""


@dataclass(frozen=True)
class Memory:
    """The difficulty of the problems, the rows of each tracker, the model of each role, and the rounds so far.

    It is kept from one round to the next; a guard that goes back restores it.
    """

    difficulty: Ref | None = None
    trackers: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    roles: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """Models of the roles that are not the policy, by name."""
    earlier: Sequence[Stored] = ()
    """The rounds before, whose rollouts waves may take up again."""
    profiled: int = 0
    """First round of the phase whose profile is in the difficulty; 0 for the first phase."""
    policies: tuple[Ref, ...] = ()
    """The policy after each round, the starting one first; none before the first round has learned."""

    def with_policy(self, index: int, before: Ref, after: Ref) -> "Memory":
        """Return the memory with the policies before and after a round; rounds that were undone had the former."""
        known = (*self.policies, *(before,) * (index - len(self.policies)))
        return replace(self, policies=(*known[:index], after))

    def policy_after(self, index: int, newest: Ref) -> Ref:
        """Return the policy after a round; `newest` if nothing was learned since."""
        return self.policies[index] if index < len(self.policies) else newest


def maybe(ref: Ref | None) -> list[Ref]:
    """Return the artifacts of an input that need not be there."""
    return [ref] if ref else []


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
    figures: dict[str, SuiteFigures]
    choice: Choice | None
    remarks: tuple[str, ...] = ()
    stopped: str = ""
    skipped: tuple[int, ...] = ()
    """Rounds without signal, whose update was skipped."""
    roles: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """The last models of the roles that were trained."""


@dataclass(frozen=True)
class Beginning:
    """Inputs with which a training run starts, or a phase of it."""

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
    """Models by role, as they begin, of those that are not the policy."""
    difficulty: Ref | None = None
    """Difficulty to begin with in place of a profile."""
    hints: Ref | None = None
    """Hints to use in place of building them."""
    plan: Ref | None = None
    """Rows that rounds plan in place of a choice."""
    asks_hints: bool = False
    """True if a row of the plan names the level of a hint, and not its text."""
    earlier: Sequence[Stored] = ()
    """Rollouts of an earlier run that waves may take up again."""
    traces: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """Texts of each file that a wave plans, by its path."""
    phases: tuple[Ref, ...] = ()
    """Problems of each phase; those of the first are `problems`."""


@dataclass(frozen=True)
class Gathered:
    """Results of a round: its plans, the rows to learn from, the memory after it, the figures of its own rollouts."""

    plans: list[Ref]
    made: Sequence[Sampled]
    """Rollouts and scores of all roles and uses."""
    memory: Memory
    metrics: Mapping[str, float]
    problems: Ref
    columns: Columns


@dataclass(frozen=True)
class State:
    """Inputs of a round: a policy, the memory of earlier rounds, and the round's rollouts if made ahead."""

    policy: Ref
    memory: Memory
    ahead: Gathered | None = None
    skipped: int = 0
    """Rounds in a row, up to now, whose update was skipped."""
