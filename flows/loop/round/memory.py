"""Memory of a run from one round to the next, by artifact; a guard that goes back restores it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradus.data.lake.store import Ref
from gradus.tasks.config.rollout import PlanningConfig


@dataclass(frozen=True)
class Stored:
    """Rollouts of a round, or of an earlier run, that waves may take up again."""

    rollouts: list[Ref]
    scores: list[Ref]
    """The scores of each."""
    problems: Ref
    """The problems that the round drew from; of an earlier run those that the training draws from first."""


Rounds = Sequence[Stored]


@dataclass(frozen=True)
class Memory:
    """The difficulty of the problems, the rows of each tracker, the model of each role, and the rounds so far."""

    difficulty: Ref | None = None
    trackers: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    roles: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """Models of the roles that are not the policy, by name."""
    earlier: Rounds = ()
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


def stored_inputs(config: PlanningConfig, policy: Ref, earlier: Rounds, problems: Ref) -> dict[str, list[Ref]]:
    """Return rollouts of the last `max_age` rounds on these problems, their scores, and the policy of age 0."""
    if not config.wave.reads_stored:
        return {"stored_rollouts": []}
    rounds = [each for each in earlier[max(0, len(earlier) - config.max_age) :] if each.problems == problems]
    return {
        "stored_rollouts": [ref for each in rounds for ref in each.rollouts],
        "stored_scores": [ref for each in rounds for ref in each.scores],
        "sampler": [policy],
    }


def maybe(ref: Ref | None) -> list[Ref]:
    """Return the artifacts of an input that need not be there."""
    return [ref] if ref else []
